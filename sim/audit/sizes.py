"""Rules for bytes of variants and slots.

Sizes come from the model's in ``config.yaml``, or else from what transfers moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

import polars as pl

from sim.audit.files import RunFiles
from sim.audit.rules import Between, Left, Rule, ratio

BITS = {
    "fp32": (32.0,) * 3,
    "fp16": (16.0,) * 3,
    "bf16": (16.0,) * 3,
    "int8": (8.0,) * 3,
    "int4": (4.0,) * 3,
    "int2": (2.0,) * 3,
    "fp8": (8 + 32 / 128**2,) * 3,
    "mxfp4": (4 + 8 / 32,) * 3,
    "int4_g32": (4 + 16 / 32,) * 3,
    "int4_g128": (4 + 16 / 128,) * 3,
    "nvfp4": (4 + 8 / 16,) * 3,
    "hqq4_g64": (4 + 32 / 64,) * 3,
    "hqq2_g64": (2 + 32 / 64,) * 3,
    "hqq2_g16": (2 + 16 / 16,) * 3,
    "q8_0": (8 + 16 / 32,) * 3,
    "q6_k": (6 + 8 / 16 + 16 / 256,) * 3,
    "q5_k_m": (5.5, 5.5, (5.5 + 6.5625) / 2),
    "mxfp4_moe": (4.25, 4.25, 4.25),
    "q4_k_m": (4.5, 4.5, (144 + 210) / 2 * 8 / 256),
    "q4_0": (4 + 16 / 32,) * 3,
    "q3_k_m": (3.4375, 3.4375, 4.5 + 1 / 16),
    "q2_k": (2.625, 2.625, 3.4375),
    "iq4_xs": (4 + 6 / 32 + 16 / 256,) * 3,
    "iq3_xxs": (3.0625,) * 3,
    "iq2_xxs": (2.0625, 2.0625, 2.0625 + 0.5625 / 8),
    "floe": (16.0, 0.0, 16.0),
}
"""The bits a weight that a load moves of the gate, up and down projections, by precision.

FloE's up projections never move.
"""
GIB = 2**30
UNKNOWN = "the files do not tell what a variant of every precision takes"


def mean_bits(precision: str) -> float | None:
    """Over an expert's three projections; None for a precision that is not known by name."""
    return sum(BITS[precision]) / 3 if precision in BITS else None


def variant_bytes(run: RunFiles, precision: str, site: int) -> int | None:
    """The bytes of one stored expert, which a whole load moves; None where no file tells them."""
    if precision in BITS and not run.is_real and not _recorded(run, precision):
        return _nominal_bytes(run, precision)
    return _moved_bytes(run).get((run.precisions.index(precision), site))


def _recorded(run: RunFiles, precision: str) -> Mapping[str, Any] | None:
    """What the summary tells of the bytes of the trace's engine, if the run took them."""
    told = run.summary.get("trace", {}).get("expert_bytes")
    return told if told and told["taken"] and told["stored_as"].lower() == precision else None


def _nominal_bytes(run: RunFiles, precision: str) -> int:
    """Parameters times bits, in bytes. Biases never have fewer than 16 bits."""
    model, bits = run.config["model"], BITS[precision]
    matrices, biases = int(model.get("expert_matrices", 3)), int(model.get("expert_biases", 0))
    of_matrix = int(model["hidden"]) * int(model["expert_intermediate"])
    # An expert of two matrices has no gate projection.
    weights = (
        of_matrix * matrices * bits[0] if len(set(bits)) == 1 else of_matrix * sum(bits[-matrices:])
    )
    return ceil((weights + biases * max(16.0, bits[-1])) / 8)


@lru_cache(maxsize=4)
def _moved_bytes(run: RunFiles) -> dict[tuple[int, int], int]:
    """By precision and site, the most bytes that one hop moved.

    Empty unless transfers move whole variants.
    """
    if not moves_whole(run):
        return {}
    of_site = pl.col("key") // run.units
    most = (
        run.transfers.filter(pl.col("class") != "dense")
        .group_by(precision=of_site // run.sites, site=of_site % run.sites)
        .agg(pl.col("moved_bytes").max())
    )
    return {(precision, site): moved for precision, site, moved in most.iter_rows() if moved}


def moves_whole(run: RunFiles) -> bool:
    """Whether every transfer moves a whole variant, no less and no more."""
    return str(run.config["payload"].get("_target_", "")).endswith(".Whole")


def held_bits(run: RunFiles) -> float | None:
    """The least bits a weight at which the device's slots hold experts.

    0 where slots hold experts as they are moved; None where it is not known.
    """
    if run.is_real:
        return 0.0
    held = run.config["precision"].get("held")
    unpacked = [
        float(link["unpack"]["bits"])
        for link in run.config["hardware"]["links"].values()
        if (link or {}).get("unpack")
    ]
    if held is not None and held not in BITS:
        return None
    return max([0.0 if held is None else sum(BITS[held]) / 3, *unpacked])


def slot_bytes(run: RunFiles, precision: str, site: int) -> int | None:
    """The bytes of one expert in a slot of the device; None where no file tells them."""
    size, held = variant_bytes(run, precision, site), held_bits(run)
    if size is None or held is None:
        return None
    all_bits = [mean_bits(name) for name in run.precisions]
    known = [bits for bits in all_bits if bits is not None]
    if not held or held <= min(known, default=held):
        return size
    bits = mean_bits(precision)
    return None if bits is None else ceil(size * max(1.0, held / bits))


def rules(run: RunFiles) -> Iterator[Rule | Left]:
    precisions, model = run.precisions, run.config["model"]
    stored = int(model["experts"]) - int(model.get("null_experts", 0))
    by_site = [[variant_bytes(run, name, at) for at in range(run.sites)] for name in precisions]
    known = [_known(run, name, sizes) for name, sizes in zip(precisions, by_site, strict=True)]
    if None in known:
        yield from (Left(key, UNKNOWN) for key in ("storage_bytes", "budget"))
        return
    yield Rule(
        "storage_bytes",
        stored * sum(map(sum, filter(None, known))),
        "experts with weights x bytes, over sites and precisions",
    )
    yield from _budget(run, stored)


def _known(run: RunFiles, precision: str, sizes: Sequence[int | None]) -> list[int] | None:
    """``sizes`` by site, None unless all are known. They must be alike, or those of an engine: a
    transfer that was cut moved less than a variant.
    """
    known = [size for size in sizes if size is not None]
    recorded = _recorded(run, precision)
    ends = [recorded["least"], recorded["most"]] if recorded else known[:1] * 2
    return known if len(known) == len(sizes) and [min(known), max(known)] == ends else None


def _budget(run: RunFiles, stored: int) -> Iterator[Rule | Left]:
    """``stored`` counts the experts of a site that have weights."""
    given, told = run.config["budget"], run.summary["budget"]
    by_site = [[slot_bytes(run, name, at) for at in range(run.sites)] for name in run.precisions]
    slots = [None if None in sizes else max(filter(None, sizes)) for sizes in by_site]
    if slots[0] is None or not {"resident_share", "slots_gib"} & set(given):
        yield Left("budget", UNKNOWN if slots[0] is None else "config.yaml names no budget")
        return
    everything, in_gib = stored * sum(filter(None, by_site[0])), given.get("slots_gib")
    # A share is the number as written, not its nearest binary fraction: 0.575 of 1,440 slots are
    # 828.
    part = (
        Fraction(str(given.get("resident_share"))) * everything
        if in_gib is None
        else round(in_gib * GIB)
    )
    allowed = min(int(part), everything)
    yield Rule(
        "budget.allowed_bytes",
        allowed,
        "budget.resident_share, or slots_gib, of all slots at the highest bits",
    )
    share = given["resident_share"] if in_gib is None else ratio(allowed, everything)
    yield Rule(
        "budget.resident_share", share, "as configured, or slots_gib over the slots of all experts"
    )
    for name, size in zip(run.precisions, slots, strict=True):
        yield Rule(
            f"budget.slot_bytes.{name}",
            size,
            "bytes of the largest expert at what the device holds it at",
        )
    yield Left("budget.initial_bytes", "what was on the device at the start is in no file")
    least = [0 if None in sizes else min(filter(None, sizes)) for sizes in by_site]
    used = sum(told["slots"][name] * size for name, size in zip(run.precisions, least, strict=True))
    yield Rule(
        "budget.device_bytes",
        Between(used, allowed),
        "at least the slots' bytes, at most what is allowed",
    )
    if len(run.precisions) == 1 or run.config["cache"].get("scope") == "global":
        yield Rule(
            f"budget.slots.{run.precisions[0]}",
            Between(0, told["device_bytes"] // least[0]),
            "at most device_bytes over the bytes of the smallest slot",
        )
        yield from (
            Rule(f"budget.slots.{name}", 0, "they share the pools of the highest")
            for name in run.precisions[1:]
        )
        return
    yield Left("budget.slots", "how the cache policy divides its pools is in no file")
