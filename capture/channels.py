"""The command that computes FloE's forecast of channels, and counts how much of it came true.

``python -m capture.channels model=DIR [trace=NAME | trace.path=DIR] [output_dir=DIR]``

FloE forecasts which channels of the next layer's experts a token will make active: it puts this
layer's gate input through the next layer's own up projections. This command does the same for every
decoded row whose gate inputs and masks the trace keeps (``hidden_sequences=``). For each expert it
counts the channels that were forecast, those that the row then made active, and those in both.

The counts are written as ``DIR/channels.json`` and ``.npz`` (default: outputs/predictors);
``payload=reused_channels`` of ``python -m sim`` moves as many channels as they say. Nothing is
fitted: the thresholds are the trace's. Gate inputs are as the trace stores them (8 bits), up
projections are the model's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf.errors import OmegaConfBaseException

from capture.models.discover import CaptureError, MoELayer, discover
from capture.models.expert_forms import form_of
from capture.recording.extras import unpack_masks
from capture.recording.load import load_model, require_weights
from capture.recording.record import THRESHOLDS_FILE
from capture.recording.settings import Settings
from sim.fitting.artefact import Artefact, write_artefact
from sim.fitting.fits import shape_of
from sim.policies.fitted import smallest_counts
from sim.process.interrupts import telling
from sim.process.progress import Shown
from sim.setup.choices import TraceChoice
from sim.setup.configure import configure
from sim.setup.own_gates import with_gates
from sim.setup.refusals import checked_settings
from sim.setup.sections import make_object
from sim.setup.traces import trace_directory
from sim.traces.gate_inputs import hidden_path, read_gate_inputs, read_tensors
from sim.traces.trace import Trace, read_trace, trace_sha256
from sim.verbs.table import verb_of
from sim.verbs.words import read

OUTPUT_DIR = "outputs/predictors"
KIND = "channels"
Counts = NDArray[np.int64]


def named_and_found(
    values: NDArray[np.float32],
    thresholds: NDArray[np.float32],
    chosen: NDArray[np.int64],
    masks: NDArray[np.bool_],
) -> tuple[Counts, Counts, Counts]:
    """How many channels of one expert are named, found and active, each as counts [M, P].

    *Named* channels are forecast to be active, *active* ones turned out to be, *found* ones are
    both. Found and active are 0 for rows that did not choose the expert.

    ``values`` [M, I]: |x W_up| of all M rows, where x is the gate input of the site before.
    ``thresholds`` [P]: one for each sparsity. ``chosen`` [C]: the rows that chose the expert.
    ``masks`` [C, P, I]: the channels that these rows made active.
    """
    mask = values[:, None, :] >= thresholds[None, :, None]
    named = mask.sum(-1)
    found, active = np.zeros_like(named), np.zeros_like(named)
    found[chosen] = (mask[chosen] & masks).sum(-1)
    active[chosen] = masks.sum(-1)
    return named, found, active


def count_channels(
    layers: Sequence[MoELayer], trace: Trace, directory: Path, progress: Shown
) -> Artefact:
    """The counts of every row whose gate inputs and masks the trace keeps, at every expert.

    Raise `CaptureError` where the trace lacks what this needs or is not the model's.
    """
    header = trace.header
    numbers = tuple(s.sequence for s in header.sequences if hidden_path(s.sequence) in header.files)
    if not numbers or not header.sparsities or THRESHOLDS_FILE not in header.files:
        raise CaptureError(
            f"trace {header.name} keeps gate inputs of {len(numbers)} sequences and masks at"
            f" sparsities {list(header.sparsities)}; capture it with hidden_sequences=4 or more,"
            " and sparsities"
        )
    model = header.model
    if (len(layers), layers[0].num_experts) != (model.sites, model.experts):
        raise CaptureError(
            f"the model has {len(layers)} sites of {layers[0].num_experts} experts, the trace"
            f" {header.name} {model.sites} of {model.experts}; name the model that it was captured"
            " from"
        )
    kept = read_gate_inputs(directory, trace, numbers)
    rows = np.flatnonzero(kept.place >= 0)
    rows = rows[np.argsort(kept.place[rows])]
    inputs, ids = kept.values, trace.ids[rows].astype(np.int64)
    masks = np.concatenate([_masks(directory, trace, number) for number in numbers])
    shape = (len(header.sparsities),)
    thresholds = read_tensors(directory / THRESHOLDS_FILE, ("thresholds",)).get("thresholds")
    if thresholds is None or thresholds.shape != (model.sites, model.experts, *shape):
        raise CaptureError(
            f"{THRESHOLDS_FILE} must hold thresholds of every site, expert and sparsity"
        )
    counts = {
        name: np.zeros((len(rows), model.sites, model.experts, *shape), np.int64)
        for name in ("named", "found", "active")
    }
    forms = [form_of(layer) for layer in layers]
    if any(form.weighted_input or form.width_in != inputs.shape[-1] for form in forms):
        raise CaptureError(
            f"{layers[0].name}: experts are not fed the gate's input as it is, so one layer's does"
            " not name the channels of the next"
        )
    for site in progress.track(range(1, model.sites), description="channels: sites"):
        before = torch.from_numpy(inputs[:, site - 1])
        there = torch.isfinite(before).all(-1).numpy()
        for expert in range(model.experts):
            with torch.no_grad():
                values = (
                    forms[site].channels(expert, torch.nan_to_num(before)).abs().float().numpy()
                )
            chosen, slot = np.nonzero((ids[:, site] == expert) & there[:, None])
            found = named_and_found(
                values, thresholds[site, expert], chosen, masks[chosen, site, slot]
            )
            for name, count in zip(counts, found, strict=True):
                counts[name][:, site, expert] = np.where(there[:, None], count, 0)
    arrays: dict[str, NDArray[Any]] = {
        name: smallest_counts(count) for name, count in counts.items()
    }
    arrays |= {
        "sequence": smallest_counts(trace.sequence[rows].astype(np.int64)),
        "position": smallest_counts(trace.position[rows].astype(np.int64)),
        "width": np.array([masks.shape[-1]], np.uint32),
    }
    identity = {"name": header.name, "sha256": trace_sha256(header)}
    return Artefact(
        KIND, {}, identity, shape_of(header), (), arrays, _results(counts, header.sparsities)
    )


def _results(counts: dict[str, Counts], sparsities: Sequence[float]) -> dict[str, float]:
    """Recall and precision of the forecast over chosen experts, by sparsity.

    Recall is the share of active channels that were named, precision the share of named channels
    that were active.
    """
    told = {}
    for column, sparsity in enumerate(sparsities):
        active, found, named = (counts[name][..., column] for name in ("active", "found", "named"))
        told[f"recall_{sparsity:g}"] = round(float(found.sum() / active.sum()), 6)
        told[f"precision_{sparsity:g}"] = round(float(found.sum() / named[active > 0].sum()), 6)
    return told


def _masks(directory: Path, trace: Trace, sequence: int) -> NDArray[np.bool_]:
    """Which channels each of a sequence's kept rows made active: bools [T, S, K, P, I]."""
    planes = read_tensors(directory / hidden_path(sequence), ("mask_planes",)).get("mask_planes")
    model, count = trace.header.model, len(trace.header.sparsities)
    bits = count.bit_length()
    if planes is None or planes.shape[1:4] != (model.sites, model.top_k, bits):
        raise CaptureError(
            f"{hidden_path(sequence)} has no mask_planes [T, {model.sites}, {model.top_k},"
            f" {bits}, ..]"
        )
    return unpack_masks(planes, count, min(model.expert_intermediate, 8 * planes.shape[4]))


def parse(arguments: Sequence[str]) -> tuple[Settings, list[str], Path]:
    """The model, the words that choose the trace, and the folder to write to.

    Raise ValueError for the first argument that is wrong.
    """
    given = read(verb_of("capture channels"), arguments).own
    words = [f"{key}={text}" for key, text in given.items() if key.startswith("trace")]
    settings = Settings(given["model"], Path(), Path(), threads=1)
    return settings, words, Path(given.get("output_dir", OUTPUT_DIR))


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    try:
        settings, words, output_dir = parse(arguments)
        choice = make_object(with_gates(checked_settings(configure(*words)[0]))["trace"], "trace")
        assert isinstance(choice, TraceChoice)
        directory = trace_directory(choice.path)
        trace = read_trace(directory)
        require_weights("model", settings.model, trace.header)
        layers = discover(load_model(settings))
        with Shown() as progress:
            artefact = count_channels(layers, trace, directory, progress)
        place = write_artefact(output_dir, KIND, artefact)
    except (ValueError, OSError, OmegaConfBaseException) as error:
        print(f"channels: {str(error).strip()}", file=sys.stderr)
        return 2
    found = ", ".join(
        f"{name.replace('_', ' at ')} {value:.3f}" for name, value in artefact.results.items()
    )
    print(f"{place}: {len(artefact.arrays['sequence'])} rows of {trace.header.name}; {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
