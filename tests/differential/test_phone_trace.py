"""A phone's own expert cache, explained by plain Python and by the simulator.

Both must give every residency flag and every hit rate that the phone reported. The trace is
third-party data that is not part of the project; where it is absent, these tests are skipped. It is
of Qwen3-30B-A3B on BigMoeOnEdge: 28 prompt and 128 decoded tokens, one cache of 4000 MiB over all
layers.

The rule that gives all 44,766 flags:

1. A *batch* is a layer's lookups of one pass: those of all prompt tokens (prefill, layers in order;
   the last layer has the last token only), or those of the one decoded token. The cache begins
   empty and has experts of all layers.
2. A lookup is resident if its expert was in the cache when the batch began. Repeats in the batch
   have the same flag.
3. The batch's lookups are gone through token by token and, inside a token, from the highest weight
   down. Each makes its expert the most recent of the whole cache, and so do repeats. So an expert's
   age is its *last* (token, slot), not its first and not its number of tokens. Absent and resident
   experts are treated alike.
4. The batch's absent experts enter at once, whatever the budget: the cache exceeds the budget until
   the batch is over.
5. Then, while the bytes in the cache exceed the budget (4000 x 2**20), the least recent expert that
   is none of the batch's leaves. Bytes are those of the expert's layer (two sizes occur); equality
   with the budget is allowed.

Step 5 need not wait. Evicting at each absent expert, in the order of step 3, gives the same flags
so long as the batch spares *all* its experts, also those not gone through yet; only the peak
differs (4184.5 or 4000.0 MiB). Sparing only those gone through gives 5 wrong flags. Sparing in step
5 never matters here, since no batch exceeds the budget.

The engine reports hits over the *distinct* experts of a batch, with prefill's (all absent) counted:
74.9 % at the end. Over decode alone it is 80.3 %.

In the simulator's words: LRU over one pool, `recency: rows`, `initial: empty`, `retention:
after_batch`, no prefetch.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capture.import_trace import main
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.traces.residency_log import EXPERT_BYTES_FILE, RESIDENCY_FILE
from sim.traces.trace import DECODE, PREFILL, Trace, read_trace
from sim.values.types import Geometry, Outcome
from sim.workload.steps import Workload

FOLDER = Path(__file__).parents[2] / ".." / "shared" / "traces" / "phone_qwen3_30b"
ROUTES, METRICS = FOLDER / "qwen.route.csv", FOLDER / "qwen.metrics"
MIB = 1 << 20
BUDGET = 4000 * MIB
SITES, EXPERTS, TOP_K, PROMPT, DECODED = 48, 128, 6, 28, 128
pytestmark = pytest.mark.skipif(
    not (ROUTES.exists() and METRICS.exists()),
    reason="the published Qwen3-30B-A3B phone trace is not here",
)

Order = Callable[[Sequence[int], Sequence[bool]], Sequence[int]]
"""Of a batch's lookups, token by token and from the highest weight down, and their flags:
experts, oldest first.
"""


@dataclass
class Batch:
    step: int
    site: int
    experts: list[int]
    resident: list[bool]


@dataclass
class Replay:
    """What a cache in plain Python found: flags in the batches' order, and sums."""

    flags: list[bool] = field(default_factory=list)
    distinct: Counter[int] = field(default_factory=Counter)
    hits: Counter[int] = field(default_factory=Counter)
    loaded: Counter[int] = field(default_factory=Counter)
    used: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Phone:
    trace: Trace
    lookups: pl.DataFrame
    batches: list[Batch]
    expert_bytes: list[int]

    def wrong(self, replay: Replay) -> int:
        recorded = [flag for batch in self.batches for flag in batch.resident]
        return sum(found != flag for found, flag in zip(replay.flags, recorded, strict=True))


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Phone:
    folder = tmp_path_factory.mktemp("phone") / "trace"
    assert main(["format=bigmoe", f"path={ROUTES}", f"output_dir={folder}"]) == 0
    trace = read_trace(folder)
    for name in (RESIDENCY_FILE, EXPERT_BYTES_FILE):
        assert trace.header.files[name] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    lookups = pl.read_parquet(folder / RESIDENCY_FILE)
    sizes = pl.read_json(folder / EXPERT_BYTES_FILE)
    return Phone(
        trace, lookups, list(batches_of(lookups)), sizes.sort("site")["expert_bytes"].to_list()
    )


def batches_of(lookups: pl.DataFrame) -> Iterator[Batch]:
    rows = lookups.select("step", "site", "expert", "resident").iter_rows()
    for (step, site), group in groupby(rows, key=lambda row: row[:2]):
        _, _, experts, resident = zip(*group, strict=True)
        yield Batch(step, site, list(experts), list(resident))


def as_chosen(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return experts


def replay(
    phone: Phone,
    budget: int = BUDGET,
    prefill: Order = as_chosen,
    decode: Order = as_chosen,
    room: str = "after_batch",
) -> Replay:
    """LRU in bytes over all layers. ``room``: when and for whom it evicts (`after_batch`,
    `sparing_batch`: at each absent expert, sparing the whole batch; `sparing_past`: at each,
    sparing the batch's experts gone through)."""
    found = Replay()
    cache: OrderedDict[tuple[int, int], int] = OrderedDict()

    def evict(spared: set[tuple[int, int]]) -> None:
        for key in [key for key in cache if key not in spared] if found.used > budget else ():
            if found.used <= budget:
                return
            found.used -= cache.pop(key)

    for batch in phone.batches:
        order = (prefill if batch.step == 0 else decode)(batch.experts, batch.resident)
        keys = {(batch.site, expert) for expert in batch.experts}
        seen: dict[tuple[int, int], bool] = {}
        for expert in order:
            key = (batch.site, expert)
            absent = key not in cache
            seen.setdefault(key, not absent)
            if absent:
                cache[key] = phone.expert_bytes[batch.site]
                found.used += cache[key]
                found.loaded[batch.step] += cache[key]
                if room != "after_batch":
                    evict(keys if room == "sparing_batch" else set(seen))
            cache.move_to_end(key)
            found.peak = max(found.peak, found.used)
        if room == "after_batch":
            evict(keys)
        found.flags += [seen[batch.site, expert] for expert in batch.experts]
        found.distinct[batch.step] += len(seen)
        found.hits[batch.step] += sum(seen.values())
    return found


def reported() -> tuple[list[dict[str, str]], dict[str, str]]:
    """The engine's own lines, one for each decoded token, and its summary."""
    lines = METRICS.read_text().splitlines()
    table = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    (summary,) = (line for line in lines if line.startswith("# summary"))
    return table, dict(item.split("=") for item in summary.split()[2:])


# The trace


def test_the_trace_has_the_shape_of_the_run(phone: Phone) -> None:
    trace = phone.trace
    assert trace.ids.shape == (PROMPT + DECODED, SITES, TOP_K)
    assert trace.header.model.experts == EXPERTS
    assert trace.step.tolist() == [0] * PROMPT + list(range(1, DECODED + 1))
    assert trace.phase.tolist() == [PREFILL] * PROMPT + [DECODE] * DECODED
    assert trace.position.tolist() == list(range(PROMPT + DECODED))
    assert len(phone.lookups) == 44766 == int((trace.ids >= 0).sum())


def test_the_last_layer_routes_the_last_prompt_token_only(phone: Phone) -> None:
    absent = phone.trace.ids < 0
    assert absent[: PROMPT - 1, SITES - 1].all()
    assert int(absent.sum()) == (PROMPT - 1) * TOP_K


def test_weights_are_shares_of_the_chosen_in_rank_order(phone: Phone) -> None:
    shares = phone.trace.weights[phone.trace.ids[..., 0] >= 0]
    assert np.allclose(shares.sum(-1), 1, rtol=0, atol=3e-6)
    assert (np.diff(shares, axis=-1) < 0).all()


def test_bytes_are_those_of_the_models_widths_in_two_mixes_of_precision(phone: Phone) -> None:
    shape = phone.trace.header.model
    weights = shape.hidden * shape.expert_intermediate
    four_bits, six_bits = 9 * weights // 16, 105 * weights // 128
    assert Counter(phone.expert_bytes) == {3 * four_bits: 24, 2 * four_bits + six_bits: 24}


def test_a_decoded_tokens_need_order_is_the_devices_slot_order(phone: Phone) -> None:
    workload = Workload(phone.trace, split="all")
    assert np.array_equal(workload.chosen[0][PROMPT:], phone.trace.ids[PROMPT:])


# The cache


def test_the_rule_gives_every_residency_flag(phone: Phone) -> None:
    assert phone.wrong(replay(phone)) == 0


def test_the_rule_gives_every_byte_read(phone: Phone) -> None:
    read = dict(phone.lookups.group_by("step").agg(pl.col("loaded_bytes").sum()).iter_rows())
    assert replay(phone).loaded == read


def test_the_rule_gives_each_tokens_reported_hit_rate_and_the_bytes_left(phone: Phone) -> None:
    table, summary = reported()
    found = replay(phone)
    hits, distinct = found.hits[0], found.distinct[0]
    for step, row in enumerate(table, 1):
        hits, distinct = hits + found.hits[step], distinct + found.distinct[step]
        assert float(row["cache_hit_pct"]) == pytest.approx(100 * hits / distinct, abs=0.00501)
    assert (hits, distinct, len(table)) == (29597, 39526, DECODED)
    assert f"{100 * hits / distinct:.1f}" == summary["cache_hit_pct"] == "74.9"
    assert f"{100 * hits / (distinct - found.distinct[0]):.1f}" == "80.3"
    assert f"{found.used / MIB:.1f}" == summary["cache_resident_MiB"] == "3997.7"
    assert summary["cache_budget_MiB"] == f"{BUDGET / MIB:.1f}"


def test_evicting_at_each_miss_is_the_same_if_the_whole_batch_is_spared(phone: Phone) -> None:
    after, at_each = replay(phone), replay(phone, room="sparing_batch")
    assert after.flags == at_each.flags
    assert (f"{after.peak / MIB:.1f}", f"{at_each.peak / MIB:.1f}") == ("4184.5", "4000.0")


def first_time(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return list(dict.fromkeys(experts))


def by_id(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return sorted(set(experts))


def by_tokens(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    """The simulator's need order of several rows."""
    tokens = Counter(experts)
    return sorted(tokens, key=lambda expert: (-tokens[expert], expert))


def backwards(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return experts[::-1]


def slot_by_slot(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return [expert for slot in range(TOP_K) for expert in experts[slot::TOP_K]]


def lowest_weight_first(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return [
        expert
        for start in range(0, len(experts), TOP_K)
        for expert in experts[start : start + TOP_K][::-1]
    ]


def resident_first(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return [
        expert
        for flag in (True, False)
        for expert, found in zip(experts, resident, strict=True)
        if found is flag
    ]


def absent_first(experts: Sequence[int], resident: Sequence[bool]) -> Sequence[int]:
    return [
        expert
        for flag in (False, True)
        for expert, found in zip(experts, resident, strict=True)
        if found is flag
    ]


@pytest.mark.alike
@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        (first_time, 7),
        (by_id, 5),
        (by_tokens, 8),
        (backwards, 5),
        (slot_by_slot, 4),
        (lowest_weight_first, 2),
    ],
)
def test_no_other_order_of_the_prompts_lookups_gives_every_flag(
    phone: Phone, order: Order, wrong: int
) -> None:
    assert phone.wrong(replay(phone, prefill=order)) == wrong


@pytest.mark.alike
@pytest.mark.parametrize(
    ("order", "wrong"), [(by_id, 4), (backwards, 10), (resident_first, 3), (absent_first, 3)]
)
def test_no_other_order_of_a_decoded_tokens_lookups_gives_every_flag(
    phone: Phone, order: Order, wrong: int
) -> None:
    assert phone.wrong(replay(phone, decode=order)) == wrong


def test_sparing_only_the_experts_gone_through_gives_wrong_flags(phone: Phone) -> None:
    assert phone.wrong(replay(phone, room="sparing_past")) == 5


@pytest.mark.parametrize(("budget_mib", "wrong"), [(3999, 4), (4001, 4)])
def test_a_budget_one_mib_off_gives_wrong_flags(phone: Phone, budget_mib: int, wrong: int) -> None:
    assert phone.wrong(replay(phone, budget_mib * MIB)) == wrong


# The simulator


@dataclass(frozen=True)
class Simulated:
    """A run of the trace's own steps: prefill is one step, whose gates are the layers' unions."""

    workload: Workload
    controller: Controller

    @property
    def found(self) -> dict[tuple[int, int, int], bool]:
        """By step, site and expert, whether the need was found resident."""
        needs = self.workload.needs
        columns = (
            self.workload.gate_step[needs.tick],
            self.workload.gate_site[needs.tick],
            needs.expert,
        )
        outcomes = self.controller.lookup_outcomes
        return {
            need: outcome == Outcome.HIT
            for need, outcome in zip(
                zip(*(column.tolist() for column in columns), strict=True), outcomes, strict=True
            )
        }

    def wrong(self, phone: Phone) -> int:
        found = self.found
        return sum(
            found[batch.step, batch.site, expert] != flag
            for batch in phone.batches
            for expert, flag in zip(batch.experts, batch.resident, strict=True)
        )


def run(phone: Phone, recency: str = "rows", retention: str = "after_batch") -> Simulated:
    """Times do not matter: an expert is there before the next gate, whenever it was asked for."""
    sizes = tuple(phone.expert_bytes)
    geometry = Geometry(SITES, EXPERTS, TOP_K, ("int4",), (4.0,), (max(sizes),), BUDGET, (sizes,))
    controller = Controller(
        geometry,
        NoPrediction(),
        LRU(initial="empty", recency=recency),
        Fixed("int4"),
        Load(),
        Loader(retention=retention),
    )
    workload = Workload(phone.trace, split="all")
    simulate(controller, workload, FixedDurations([5] * SITES, 3, [2], dict.fromkeys(sizes, 11)))
    controller.check()
    return Simulated(workload, controller)


@pytest.fixture(scope="module")
def simulated(phone: Phone) -> Simulated:
    return run(phone)


def test_the_simulators_gates_are_the_devices_batches(phone: Phone, simulated: Simulated) -> None:
    workload, units = simulated.workload, EXPERTS + 1
    assert [step.rows for step in workload.steps] == [PROMPT] + [1] * DECODED
    ticks = list(zip(workload.gate_step.tolist(), workload.gate_site.tolist(), strict=True))
    assert ticks == [(batch.step, batch.site) for batch in phone.batches]
    needs = [set(batch.experts) for batch in phone.batches]
    assert [set(experts) for experts in workload.experts_by_gate()] == needs
    keys = [site * units + expert for _, site, expert in simulated.found]
    assert simulated.controller.lookup_keys == keys


def test_a_need_is_found_resident_in_the_simulator_where_the_device_found_it(
    phone: Phone, simulated: Simulated
) -> None:
    assert set(simulated.controller.lookup_outcomes) == {Outcome.HIT, Outcome.MISS}
    assert simulated.wrong(phone) == 0


def test_the_simulator_hits_as_often_as_the_device(simulated: Simulated) -> None:
    found = simulated.found
    decode = [there for (step, _, _), there in found.items() if step]
    assert (sum(found.values()), len(found)) == (29597, 39526)
    assert f"{100 * sum(found.values()) / len(found):.1f}" == "74.9"
    assert f"{100 * sum(decode) / len(decode):.1f}" == "80.3"


def test_the_simulator_loads_what_the_device_read_and_holds_as_much(
    phone: Phone, simulated: Simulated
) -> None:
    controller = simulated.controller
    assert (
        sum(transfer.moved_bytes for transfer in controller.issued)
        == phone.lookups["loaded_bytes"].sum()
    )
    assert controller.slots.peak_bytes == replay(phone).peak
    assert f"{controller.slots.peak_bytes / MIB:.1f}" == "4184.5"


def test_evicting_at_each_miss_gives_the_same_flags_in_the_simulator_too(phone: Phone) -> None:
    strict = run(phone, retention="strict")
    assert strict.wrong(phone) == 0
    assert f"{strict.controller.slots.peak_bytes / MIB:.1f}" == "4000.0"


def test_recency_by_need_order_gives_the_wrong_flags_of_plain_python(phone: Phone) -> None:
    by_needs = run(phone, recency="needs")
    assert by_needs.wrong(phone) == phone.wrong(replay(phone, prefill=by_tokens)) == 8
