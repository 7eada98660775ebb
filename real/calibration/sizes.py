"""How much is measured: on a GPU, in a rehearsal of some minutes, and in tests."""

from __future__ import annotations

from dataclasses import dataclass

from real.cuda.bench import Bench

SYSTEMS = ("load_on_demand", "lru", "mixtral_offloading", "hobbit", "fate", "floe", "fiddler")


@dataclass(frozen=True)
class Size:
    """How much each piece of the suite does.

    - ``words`` configure every run (`python -m real`).
    - ``budgets`` are resident shares, the most telling first.
    - ``copy_bits``: sizes of the probe's copies, as powers of two.
    - ``gather``: neurons, bytes of a row, columns, threads.
    - ``verify_real``: whether kernels are checked at real experts' shapes, too.
    - ``repeats``: of a validated run.
    """

    words: tuple[str, ...]
    budgets: tuple[float, ...]
    bench: Bench
    copy_bits: tuple[int, ...]
    gather: tuple[int, int, tuple[int, ...], tuple[int, ...]]
    systems: tuple[str, ...] = SYSTEMS
    validated: tuple[str, ...] = ("load_on_demand", "lru", "mixtral_offloading", "hobbit")
    validated_budgets: tuple[float, ...] = (0.6,)
    repeats: int = 3
    verify_real: bool = True
    live: tuple[str, ...] = ("lru", "mixtral_offloading", "hobbit")
    live_tokens: int = 24
    calibration: str = "full"


OWN_WORDS = {"floe": ("payload=active_share_nominal",)}
"""Words for single systems.

FloE: the first tokens of the bundled sequences are prompts', for which no active shares are
recorded.
"""

VARIANTS = {"floe zero_copy": "engine.gather=zero_copy"}
"""Systems with one part exchanged, by name."""


RUNS = (
    "model=tiny_gates_half_mixtral",
    "hardware=h200_sxm_pcie5",
    "trace=tiny_mixtral",
    "workload=hobbit_16_128",
    "trace.max_sequences=1",
    "engine.dtype=float16",
)
"""Words for replays at every size.

The model has no weights: stand-ins are computed, and their code is not a model's.
"""
LITTLE = (
    "model.hidden=128",
    "model.expert_intermediate=120",
    "model.heads=4",
    "model.kv_heads=2",
    "model.vocab=2048",
)
"""Words for a rehearsal: sizes as small as the bundled model's."""
SMALL_BENCH = Bench(
    shapes={"mixtral": (1408, 512), "qwen3": (192, 512)},
    far_bytes=1 << 23,
    kept_shares=(0.1,),
    curve_bytes=(1 << 18, 1 << 20),
    curve_hidden=512,
    gates=((8, 2, 512),),
    prefill_rows=(16,),
    copy_bytes=1 << 24,
    repeats=3,
)
TINY_BENCH = Bench(
    shapes={"mixtral": (40, 64)},
    far_bytes=1 << 12,
    kept_shares=(0.5,),
    curve_bytes=(1 << 12,),
    curve_hidden=64,
    gates=((8, 2, 64),),
    prefill_rows=(2,),
    copy_bytes=1 << 12,
    repeats=1,
)
SIZES = {
    "full": Size(
        words=(
            *RUNS,
            "workload.prompt_tokens=8",
            "workload.decode_tokens=12",
            "engine.patience_s=20",
            "engine.stand_in_gib=0.4",
        ),
        budgets=(0.6, 0.4, 0.8),
        bench=Bench(),
        copy_bits=tuple(range(12, 29, 2)),
        gather=(14336, 16384, (1, 5, 10, 25, 50, 100, 200), (1, 4, 16)),
    ),
    "small": Size(
        words=(
            *RUNS,
            *LITTLE,
            "workload.prompt_tokens=8",
            "workload.decode_tokens=16",
            "engine.patience_s=30",
            "engine.stand_in_gib=0.004",
        ),
        budgets=(0.6, 0.4, 0.8),
        bench=SMALL_BENCH,
        copy_bits=(12, 16, 20, 24),
        gather=(2048, 2048, (1, 10, 50), (1, 2)),
        repeats=2,
        verify_real=False,
        live_tokens=8,
        calibration="small",
    ),
    "tiny": Size(
        words=(
            *RUNS,
            *LITTLE,
            "workload.prompt_tokens=2",
            "workload.decode_tokens=2",
            "engine.patience_s=30",
            "engine.stand_in_gib=0.004",
        ),
        budgets=(0.5,),
        bench=TINY_BENCH,
        copy_bits=(12, 14),
        gather=(64, 64, (1, 10), (1,)),
        systems=("lru", "floe"),
        live=("lru",),
        validated=("lru", "load_on_demand"),
        validated_budgets=(0.5,),
        repeats=1,
        verify_real=False,
        live_tokens=2,
        calibration="tiny",
    ),
}
