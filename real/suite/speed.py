"""The pieces that time and check single things: links and host, kernels."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from real.calibration.sizes import SIZES
from real.cuda.runtime import runtime_of
from real.suite.context import Context, LeftOut

SAVE_EVERY = 8


def probe(context: Context) -> None:
    """Measure copies by size, host costs, clocks and FloE's gather. Result: ``facts.json``."""
    from real.cuda.probing import links_and_host

    size = SIZES[context.size]
    pairs, row_bytes, columns, threads = size.gather
    context.save(
        "facts",
        links_and_host(
            runtime_of(context.device),
            tuple(1 << bits for bits in size.copy_bits),
            pairs,
            row_bytes,
            columns,
            threads,
        ),
    )


def verify(context: Context) -> None:
    """Check every kernel against fp64. Result: ``verify.json``.

    Raise RuntimeError if a kernel is wrong, after all have been checked.
    """
    from real.kernels.verify import verify as checks

    rows: list[dict[str, Any]] = []
    left_out = False
    for check in checks(runtime_of(context.device).device, real=SIZES[context.size].verify_real):
        rows.append({**asdict(check), "holds": check.holds})
        if len(rows) % SAVE_EVERY == 0:
            context.save("verify", {"checks": rows, "all": False})
        if not context.deadline.has(2):
            left_out = True
            break
    context.save("verify", {"checks": rows, "all": not left_out})
    wrong = [row for row in rows if not row["holds"]]
    if wrong:
        first = wrong[0]
        raise RuntimeError(
            f"{len(wrong)} of {len(rows)} checks fail, first {first['operator']} {first['shape']}: "
            f"{first['reason'] or first['error']}"
        )
    if left_out:
        raise LeftOut(f"no time for what comes after {rows[-1]['operator']} of {rows[-1]['shape']}")


def kernels(context: Context) -> None:
    """Measure kernels' speeds beside a measured copy. Result: ``kernels.json``."""
    from real.cuda.bench import Measuring

    measuring = Measuring(runtime_of(context.device), SIZES[context.size].bench)
    rows: list[dict[str, Any]] = []
    told: dict[str, Any] = {"copy_bytes_per_s": measuring.peak, "rows": rows, "all": False}
    for timed in measuring.measure():
        rows.append({**asdict(timed), "bytes_per_s": timed.bytes_per_s})
        context.save("kernels", told)
        if not context.deadline.has(3):
            raise LeftOut(f"no time for what comes after {timed.operator} of {timed.shape}")
    context.save("kernels", {**told, "all": True})
