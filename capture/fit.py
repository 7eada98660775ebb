"""``python -m capture.fit predictor=NAME [trace=NAME | trace.path=DIR] [output_dir=DIR] [key=value
...]``: train the networks of a learned predictor.

It trains one network a site on the trace's ``fit`` sequences and writes ``DIR/NAME.json`` and
``DIR/NAME.npz`` (default: ``outputs/predictors``), which ``python -m sim`` reads without torch.

``width`` (64): units of the hidden layer at the first site. The width shrinks evenly towards the
last site, as FloE's networks shrink with depth; where it is below the number of experts there is no
hidden layer. ``epochs`` (60), ``batch`` (256), ``rate`` (0.003, of learning), ``decay`` (0.0001, of
weights), ``seed`` (0). An eighth of the sequences is held out; of all epochs the one is kept whose
network finds most of their experts.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.fitting.artefact import Artefact, write_artefact
from sim.fitting.fits import sample_of, sample_rows, shape_of
from sim.policies.learned import NORM, LearnedPerSite
from sim.policies.requires import Sample
from sim.process.interrupts import telling
from sim.process.progress import Shown
from sim.setup.fit_requests import FitRequest, request_of
from sim.setup.traces import trace_directory
from sim.traces.gate_inputs import hidden_path, read_gate_inputs
from sim.traces.trace import trace_sha256

if TYPE_CHECKING:
    # Late where it is used: loading torch takes longer than to refuse a word.
    import torch
    from torch import nn

Floats = NDArray[np.float32]
HELD_OUT = 8
"""One sequence of so many is held out."""


@dataclass(frozen=True)
class Training:
    """How the networks are trained; the module's text explains the fields."""

    width: int = 64
    epochs: int = 60
    batch: int = 256
    rate: float = 3e-3
    decay: float = 1e-4
    seed: int = 0


@dataclass(frozen=True)
class Site:
    """What the network of one site learns from: ``features`` [N, F], ``wanted`` [N, E] (1: the row
    chose the expert), and which rows are ``held_out`` [N].
    """

    features: Floats
    wanted: Floats
    held_out: NDArray[np.bool_]


def parse(arguments: Sequence[str]) -> tuple[Training, list[str]]:
    """The settings of the training, and the other arguments. Raise ValueError for a value out of
    range.
    """
    known: dict[str, type[int] | type[float]] = {
        name: type(value) for name, value in vars(Training()).items()
    }
    given: dict[str, Any] = {}
    rest = []
    for argument in arguments:
        key, _, text = argument.partition("=")
        if key not in known:
            rest.append(argument)
            continue
        try:
            given[key] = known[key](text)
        except ValueError:
            raise ValueError(f"{argument} must be a number ({known[key].__name__})") from None
        if not 0 <= given[key] < 1e6 or (given[key] == 0 and key in ("epochs", "batch", "rate")):
            raise ValueError(
                f"{argument} must be a number above 0 (width, decay and seed: 0 or more), below 1e6"
            )
    return Training(**given), rest


def train(request: FitRequest, training: Training, progress: Shown) -> Artefact:
    """Train one network a site. Raise ValueError where the trace lacks what the predictor reads."""
    import torch

    predictor, trace = request.predictor, request.trace
    if not isinstance(predictor, LearnedPerSite):
        raise ValueError(f"{type(predictor).__name__} is no network that is trained here")
    sequences, given = _inputs(request, predictor)
    sample = sample_of(trace, sequences)
    shape = shape_of(trace.header)
    held_out = np.isin(sample.sequence, sequences[-max(len(sequences) // HELD_OUT, 1) :])
    arrays: dict[str, NDArray[Any]] = {}
    sources = predictor.sources(shape)
    data = {site: _site_data(predictor, sample, given, site, held_out) for site in sources}
    for place, site in enumerate(progress.track(sources, description="training: sites")):
        # Each site has its own seed, so that how long one site trains does not change the next.
        generator = torch.Generator().manual_seed(training.seed * 10_007 + site)
        width = round(training.width * (1 - place / max(len(sources) - 1, 1)))
        layers = train_site(data[site], width if width >= shape.experts else 0, training, generator)
        for number, (weight, bias) in enumerate(layers):
            arrays[f"site{site}_w{number}"] = weight.astype(np.float16)
            arrays[f"site{site}_b{number}"] = bias.astype(np.float16)
    predictor.know(shape, arrays)
    found = [
        recall(predictor.likeliness(site, data[site].features), data[site]) for site in sources
    ]
    results = {"held_out_recall": round(float(np.mean(found)), 6), **_plain(training)}
    identity = {"name": trace.header.name, "sha256": trace_sha256(trace.header)}
    return Artefact(
        predictor.kind, predictor.parameters, identity, shape, sequences, arrays, results
    )


def _plain(training: Training) -> dict[str, float]:
    return dict(vars(training))


def _inputs(
    request: FitRequest, predictor: LearnedPerSite
) -> tuple[tuple[int, ...], Floats | None]:
    """The sequences to learn from, and what the networks read of each row and site beside the
    selections: [N, S, G], or None for nothing.
    """
    trace, sequences = request.trace, request.sequences
    if len(sequences) < 2:
        raise ValueError(
            f"trace {trace.header.name} has {len(sequences)} fit sequence, but training holds"
            " one out"
        )
    given: Floats | None = None
    if predictor.inputs == "gate_input":
        sequences = tuple(
            number for number in sequences if hidden_path(number) in trace.header.files
        )
        if len(sequences) < 2:
            raise ValueError(
                f"trace {trace.header.name} keeps gate inputs of {len(sequences)} fit sequences,"
                " but training needs 2; capture with hidden_sequences=all, or choose"
                " predictor.inputs=scores or ids"
            )
        kept = read_gate_inputs(trace_directory(request.choice.path), trace, sequences)
        rows = sample_rows(trace, sequences)
        given = np.where(
            (kept.place[rows] >= 0)[:, None, None],
            kept.values[kept.place[rows]],
            np.float32(np.nan),
        )
    elif predictor.inputs == "scores":
        have = trace.header.lookahead
        if have is None or NORM not in have.norms or have.depth < predictor.score_sites:
            raise ValueError(
                f"trace {trace.header.name} records lookahead {have}, but the predictor reads"
                f" scores of {predictor.score_sites} sites ({NORM}); capture with"
                f" lookahead={predictor.score_sites}, or choose predictor.inputs=ids or fewer"
                " predictor.score_sites"
            )
        rows = sample_rows(trace, sequences)
        scores = trace.lookahead[NORM][rows][:, :, : predictor.score_sites]
        given = scores.reshape(*scores.shape[:2], -1)
    return sequences, given


def _site_data(
    predictor: LearnedPerSite,
    sample: Sample,
    given: Floats | None,
    site: int,
    held_out: NDArray[np.bool_],
) -> Site:
    shape = sample.shape
    target = site + predictor.stride
    own = None if given is None else given[:, site]
    if own is not None and predictor.inputs == "scores":
        own = own[:, : predictor.num_given(shape, site, 0)]
    there = sample.visits(site) & sample.visits(target)
    if own is not None:
        there &= np.isfinite(own).all(axis=1)
    if not (there & held_out).any() or not (there & ~held_out).any():
        raise ValueError(
            f"site {site}: the fit sequences have {int(there.sum())} rows with everything that"
            f" predictor.inputs={predictor.inputs} reads, none of them left to learn from or to"
            " hold out; capture more fit sequences"
        )
    first = shape.encoder_sites if site >= shape.encoder_sites else 0
    earlier = [
        sample.ids[there, back]
        for back in range(site, max(site - predictor.history, first) - 1, -1)
    ]
    features = predictor.features(shape, None if own is None else own[there], earlier)
    return Site(features, sample.members(target)[there].astype(np.float32), held_out[there])


def train_site(
    data: Site, width: int, training: Training, generator: torch.Generator
) -> list[tuple[Floats, Floats]]:
    """Train one network. Return the weights [in, out] and biases [out] of each layer.

    ``width``: units of the hidden layer, 0 for none.
    """
    import torch
    from torch import nn

    learnt = ~data.held_out
    mean, std = data.features[learnt].mean(axis=0), data.features[learnt].std(axis=0)
    std = np.where(std > 1e-6, std, 1.0).astype(np.float32)
    inputs, wanted = (
        torch.from_numpy(np.ascontiguousarray(v))
        for v in ((data.features - mean) / std, data.wanted)
    )
    rows = torch.from_numpy(np.flatnonzero(learnt))
    network = _network(inputs.shape[1], width, wanted.shape[1], generator)
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=training.rate, weight_decay=training.decay
    )
    best, best_recall = copy.deepcopy(network.state_dict()), -1.0
    for _ in range(training.epochs):
        for batch in rows[torch.randperm(len(rows), generator=generator)].split(training.batch):  # type: ignore[no-untyped-call]
            loss = nn.functional.binary_cross_entropy_with_logits(
                network(inputs[batch]), wanted[batch]
            )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        with torch.no_grad():
            found = recall(network(inputs).numpy(), data)
        if found > best_recall:
            best, best_recall = copy.deepcopy(network.state_dict()), found
    network.load_state_dict(best)
    layers = [
        (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
        for layer in network
        if isinstance(layer, nn.Linear)
    ]
    weight, bias = layers[0]
    # The first layer takes over the centring and scaling of the features.
    layers[0] = weight / std[:, None], bias - (mean / std) @ weight
    return layers


def _network(features: int, width: int, experts: int, generator: torch.Generator) -> nn.Sequential:
    import torch
    from torch import nn

    sizes = [features, width, experts] if width else [features, experts]
    parts: list[nn.Module] = []
    for size, out in pairwise(sizes):
        layer = nn.Linear(size, out)
        with torch.no_grad():
            layer.weight.uniform_(-(size**-0.5), size**-0.5, generator=generator)
            layer.bias.zero_()
        parts += [nn.ReLU(), layer] if parts else [layer]
    return nn.Sequential(*parts)


def recall(scores: NDArray[Any], data: Site) -> float:
    """The share of the held-out rows' experts that the scores find: those among a row's highest
    scores, as many as the row chose.
    """
    scores, wanted = scores[data.held_out], data.wanted[data.held_out] > 0
    order = np.argsort(-scores, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    return float((wanted & (rank < wanted.sum(axis=1, keepdims=True))).sum() / wanted.sum())


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    try:
        training, rest = parse(arguments)
        request = request_of(rest, trains=True)
        import torch

        # One thread, because sums in another order would give other networks.
        torch.set_num_threads(1)
        with Shown() as progress:
            artefact = train(request, training, progress)
        place = write_artefact(request.output_dir, request.fit.name, artefact)
    except (ValueError, OSError) as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    print(
        f"{place}: {artefact.kind} of {len(artefact.sequences)} fit sequences of"
        f" {artefact.trace['name']}, recall {artefact.results['held_out_recall']:.3f} on those"
        " held out"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
