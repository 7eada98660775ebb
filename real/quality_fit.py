"""Makes the choices that papers make offline by a model's losses.

    python -m real.quality_fit fit=NAME [trace=NAME | trace.path=DIR] [tolerated=0.05] [KEY=VALUE]

Losses are measured on the ``fit`` sequences of a trace alone, as relative increases of perplexity:

- ``fit=widths`` (EdgeMoE section 3.2): the importance of every expert; then as many of the least
  important as the tolerated loss allows get the lower of two widths. For ``precision=per_expert
  precision.artefact=FILE``.
- ``fit=low_share`` (Fate section 4.5): the largest share of a prompt's unpopular experts at INT2,
  the others at INT4, within the tolerated loss over INT4. For ``precision=low_for_few
  precision.artefact=FILE``.
- ``fit=sparsity`` (FloE section 3.2): the largest of the trace's sparsities within the tolerated
  loss, with its thresholds; prints the override ``payload.sparsity=``.

``texts``: how many sequences are read. ``weights``, ``dtype``, ``device``, ``threads`` are as in
``python -m real.quality``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn
from safetensors.torch import load_file

from real.lossy.figures import CHANNELS, GROUPS
from real.lossy.importance import profile, search
from real.lossy.loss import difference, quality_of
from real.lossy.mixture import all_at
from real.lossy.recipes import by_popularity
from real.lossy.requests import WRONG_INPUT, weights_of
from real.lossy.sparse import require_gated, sparse_forward
from real.lossy.texts import texts_of_trace
from real.lossy.variants import Variants
from real.lossy.whole import Track, Whole
from sim.fitting.artefact import Artefact, write_artefact
from sim.fitting.fits import fit_sequences, shape_of
from sim.process.interrupts import telling
from sim.process.progress import Shown
from sim.setup.configure import configure
from sim.setup.own_gates import with_gates
from sim.setup.refusals import checked_settings
from sim.setup.traces import load_trace, trace_directory
from sim.traces.trace import Header, trace_sha256
from sim.verbs.words import read_all

SHARES = 16
"""How finely the share of low experts is tried: in steps of 1/16."""


@dataclass(frozen=True)
class Fitted:
    """What a fit found: the artefact's own part, and how to use it.

    In ``use``, ``FILE`` stands for the artefact's place.
    """

    kind: str
    parameters: Mapping[str, str | int]
    arrays: Mapping[str, np.ndarray]
    results: Mapping[str, float]
    told: str
    use: str


def widths(whole: Whole, tolerated: float, place: Path, header: Header, track: Track) -> Fitted:
    """EdgeMoE's search for bit-widths."""
    low_variants = Variants(whole.forms, ("int4", "int2"), CHANNELS)
    found = search(whole, profile(whole, low_variants, track), tolerated, CHANNELS, track)
    if found.high == found.low:
        raise ValueError(
            f"tolerated={tolerated:g}: {found.low} throughout loses {found.loss:.2%}, so nothing is"
            f" left to choose; use precision={found.low}, or tolerate less"
        )
    return Fitted(
        "expert_widths",
        {"high": found.high, "low": found.low, "tolerated": f"{tolerated:g}"},
        {"low": found.table.astype(np.uint8)},
        {"loss": found.loss, "low_share": found.low_share, "bits": found.bits},
        f"{found.low_share:.1%} of experts at {found.low}, the others at {found.high}:"
        f" {found.bits:.2f} bits a weight, loss {found.loss:+.2%}",
        f"precision=per_expert precision.high={found.high} precision.low={found.low}"
        " precision.artefact=FILE",
    )


def low_share(whole: Whole, tolerated: float, place: Path, header: Header, track: Track) -> Fitted:
    """Fate's share of low experts: the largest within the tolerated loss over INT4.

    Every smaller share that is tried is within it, too.
    """
    experts = whole.forms[0].layer.num_experts
    variants = Variants(whole.forms, ("int4", "int2"), GROUPS)
    base = whole.losses(variants, all_at(0), track=track)
    best, lost = 0.0, 0.0
    for step in range(1, SHARES + 1):
        share = step / SHARES
        losses = whole.losses(
            variants, by_popularity(share, popular_first=False, experts=experts), track=track
        )
        loss = difference(losses, base).value
        if loss > tolerated:
            break
        best, lost = share, loss
    return Fitted(
        "low_share",
        {"high": "int4", "low": "int2", "tolerated": f"{tolerated:g}"},
        {"low_share": np.array([best])},
        {"loss": lost},
        f"{best:.1%} of a prompt's experts at int2: loss {lost:+.2%} over int4 throughout",
        "precision=low_for_few precision.artefact=FILE",
    )


def sparsity(whole: Whole, tolerated: float, place: Path, header: Header, track: Track) -> Fitted:
    """FloE's sparsity, with thresholds that the trace's capture fitted on its fit sequences."""
    require_gated(whole.forms[0])
    file = place / "thresholds.safetensors"
    if not header.sparsities or not file.is_file():
        raise ValueError(
            f"trace {header.name} has no activation thresholds; capture it with"
            " sparsities=0.5,0.8,0.9"
        )
    thresholds = load_file(file)["thresholds"]
    best, lost = -1, 0.0
    for column in range(len(header.sparsities)):
        variants = Variants(whole.forms, ("floe",), GROUPS)
        losses = whole.losses(
            variants, all_at(0), sparse_forward("up", thresholds[..., column]), track
        )
        loss = quality_of(losses).increase.value
        if loss > tolerated:
            break
        best, lost = column, loss
    if best < 0:
        raise ValueError(
            f"tolerated={tolerated:g}: a sparsity of {header.sparsities[0]:g}, the trace's"
            f" smallest, loses {loss:.2%}; tolerate more, or capture with smaller sparsities"
        )
    share = header.sparsities[best]
    return Fitted(
        "sparsity",
        {"tolerated": f"{tolerated:g}"},
        {"thresholds": thresholds[..., best].numpy()},
        {"loss": lost, "sparsity": share},
        f"sparsity {share:g} with W_up in INT2: loss {lost:+.2%}",
        f"system=floe payload.sparsity={share:g}",
    )


FITS: Mapping[str, Callable[[Whole, float, Path, Header, Track], Fitted]] = {
    "widths": widths,
    "low_share": low_share,
    "sparsity": sparsity,
}


@telling("nothing was written")
def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    console = Console(stderr=True)
    try:
        place, told = fit(words, console)
    except WRONG_INPUT as error:
        print(f"quality_fit: {str(error).strip()}", file=sys.stderr)
        return 2
    print(f"{place}: {told}")
    return 0


def fit(words: Sequence[str], console: Console) -> tuple[Path, str]:
    """Fit; return where the fit was written, and what it says. Raise ValueError for wrong input."""
    given = read_all("real quality_fit", words)
    own, overrides = given.own, given.overrides
    if others := [word for word in overrides if word.split("=")[0] not in ("trace", "trace.path")]:
        raise ValueError(
            f"{others[0]!r} is no word of a fit: it reads a model, and of a trace so many fit"
            " sequences as texts= says"
        )
    tolerated, texts = float(own["tolerated"]), int(own["texts"])
    if not 0 < tolerated < 1e6:
        raise ValueError(f"tolerated={tolerated:g} must be above 0")
    directory = Path(own["output_dir"])
    place = with_gates(checked_settings(configure(*overrides)[0]))["trace"]["path"]
    trace = load_trace(place, 0)
    header, sequences = trace.header, fit_sequences(trace, most=texts)
    weights = weights_of(own)
    read, _rows = texts_of_trace(trace, sequences)
    with _progress(console) as track:
        found = FITS[own["fit"]](
            Whole(weights.load(header), read),
            tolerated,
            trace_directory(place),
            header,
            track,
        )
    name = f"{found.kind}-{tolerated:g}"
    place = write_artefact(
        directory,
        name,
        Artefact(
            found.kind,
            found.parameters,
            {"name": header.name, "sha256": trace_sha256(header)},
            shape_of(header),
            sequences,
            found.arrays,
            found.results,
        ),
    )
    return (
        place,
        (
            f"{found.told}, on {len(sequences)} fit sequences of {header.name}\n"
            f"moelab run {found.use.replace('FILE', str(place))}"
        ),
    )


@contextmanager
def _progress(console: Console) -> Iterator[Track]:
    columns = (TextColumn("{task.description}: {task.completed:g}"), TimeElapsedColumn())
    with Shown(*columns, console=console) as progress:
        task, read = progress.add_task("reading", total=None), [0]

        def track() -> None:
            read[0] += 1
            progress.update(task, description="texts read", completed=read[0])

        yield track


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
