"""Precisions by score, at the thresholds and beside them; and the bytes of precisions."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.machine.model import Model
from sim.machine.precision import PRECISION_BITS, PRECISIONS
from sim.policies.precisions import Fixed, LowForFew, PerExpert, ScoreThreshold, SkipLight
from sim.policies.requires import FitError, Shape
from sim.values.types import SKIP

T1, T2 = 0.5, 0.75
ABOVE_T1, ABOVE_T2 = math.nextafter(T1, 1), math.nextafter(T2, 1)


def holds(*held: tuple[int, int, int]) -> Any:
    return SimpleNamespace(has=lambda precision, site, expert: (precision, site, expert) in held)


def select(*scores: float, held: tuple[tuple[int, int, int], ...] = ()) -> list[int]:
    choice = SimpleNamespace(site=2, needs=list(range(len(scores))), scores=list(scores))
    return list(ScoreThreshold("fp16", "int4", T1, T2).select(choice, holds(*held)))


def test_a_threshold_belongs_to_the_better_side() -> None:
    assert select(0.0, T1, ABOVE_T1, T2, ABOVE_T2, 1.0) == [0, 0, 1, 1, SKIP, SKIP]


@pytest.mark.parametrize(
    ("held", "answer"),
    [
        ((), SKIP),
        (((0, 2, 0),), 1),
        (((1, 2, 0),), 1),
        (((0, 2, 0), (1, 2, 0)), 1),
        (((0, 2, 1),), SKIP),
        (((0, 1, 0),), SKIP),
    ],
)
def test_an_expert_to_be_skipped_is_wanted_at_the_low_precision_if_any_copy_is_there(
    held: tuple[tuple[int, int, int], ...], answer: int
) -> None:
    """The last two cases have a copy of another expert, and of another site."""
    assert select(1.0, held=held) == [answer]


def test_what_is_there_changes_nothing_below_the_second_threshold() -> None:
    assert select(T1, T2, held=((1, 2, 0), (0, 2, 1))) == [0, 1]


@pytest.mark.parametrize(
    ("score", "answers"),
    [
        (0.0, (0,)),
        (T1, (0,)),
        (ABOVE_T1, (0, 1)),
        (T2, (0, 1)),
        (ABOVE_T2, (0, 1, SKIP)),
        (1.0, (0, 1, SKIP)),
    ],
)
def test_permitted_names_every_variant_that_may_serve(
    score: float, answers: tuple[int, ...]
) -> None:
    assert ScoreThreshold("fp16", "int4", T1, T2).permitted(score) == answers


def test_equal_thresholds_leave_no_low_precision() -> None:
    selector = ScoreThreshold("fp16", "int4", 0.5, 0.5)
    choice = SimpleNamespace(site=0, needs=[0, 1], scores=[0.5, ABOVE_T1])
    assert list(selector.select(choice, holds())) == [0, SKIP]


def test_thresholds_are_taken_from_the_quantiles_of_the_scores() -> None:
    """Of 0, 0.01 .. 1 the 0.67 and 0.97 quantiles are 0.67 and 0.97."""
    selector = ScoreThreshold("fp16", "int4", None, None, [0.67, 0.97])
    selector.profile(np.linspace(0, 1, 101))
    assert (selector.low_above, selector.skip_above) == pytest.approx((0.67, 0.97))


def test_given_thresholds_are_not_profiled_away() -> None:
    selector = ScoreThreshold("fp16", "int4", T1, T2, [0.1, 0.2])
    selector.profile(np.linspace(0, 1, 101))
    assert (selector.low_above, selector.skip_above, selector.quantiles) == (T1, T2, None)


@pytest.mark.parametrize(
    ("low", "skip", "quantiles", "message"),
    [
        (
            0.8,
            0.6,
            None,
            r"low_above=0.8, skip_above=0.6; set precision.low_above and precision.skip_above",
        ),
        (-0.1, 0.6, None, r"need 0 <= low_above <= skip_above <= 1 \(HOBBIT's T1 and T2\)"),
        (0.5, 1.1, None, r"need 0 <= low_above <= skip_above <= 1"),
        (
            0.5,
            None,
            None,
            r"give both precision.low_above and precision.skip_above, got 0.5 and None",
        ),
        (
            None,
            0.5,
            (0.1, 0.2),
            r"give both precision.low_above and precision.skip_above, got None and 0.5",
        ),
        (None, None, None, r"need two ascending precision.quantiles .* got None"),
        (None, None, (0.9, 0.1), r"need two ascending precision.quantiles"),
        (None, None, (0.9,), r"need two ascending precision.quantiles"),
        (None, None, (0.5, 1.5), r"need two ascending precision.quantiles within 0..1"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(
    low: Any, skip: Any, quantiles: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ScoreThreshold("fp16", "int4", low, skip, quantiles)


def test_one_precision_under_two_names_is_refused() -> None:
    with pytest.raises(
        ValueError, match="need two different precisions, got high=int4 and low=int4"
    ):
        ScoreThreshold("int4", "int4", T1, T2)


def test_a_fixed_selector_knows_one_precision() -> None:
    selector = Fixed("int8")
    assert (selector.precisions, selector.constant, selector.permitted(1.0)) == (("int8",), 0, (0,))
    assert list(selector.select(SimpleNamespace(needs=[4, 2]), holds())) == [0, 0]


# Bits a weight


def model(**changes: Any) -> Model:
    """Mixtral-8x7B's experts: 3 x 4096 x 14336 weights."""
    values: dict[str, Any] = {
        "name": "mixtral",
        "sites": 32,
        "experts": 8,
        "top_k": 2,
        "hidden": 4096,
        "expert_intermediate": 14336,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 32000,
        "source": "x",
    }
    return Model(**(values | changes))


PROJECTION = 4096 * 14336


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("fp32", 3 * PROJECTION * 4),
        ("fp16", 352_321_536),
        (
            "fp8",
            3 * (PROJECTION + PROJECTION // 128**2 * 4),
        ),  # one byte each, and an fp32 scale a block
        (
            "mxfp4",
            3 * (PROJECTION // 2 + PROJECTION // 32),
        ),  # half a byte each, and one byte for each 32
        ("int4_g32", 3 * (PROJECTION // 2 + PROJECTION // 32 * 2)),  # a bf16 for each 32
        ("int4_g128", 3 * (PROJECTION // 2 + PROJECTION // 128 * 2)),
        ("nvfp4", 3 * (PROJECTION // 2 + PROJECTION // 16)),  # one byte for each 16
        ("hqq4_g64", 3 * (PROJECTION // 2 + PROJECTION // 64 * 4)),  # two fp16 for each 64
        ("hqq2_g64", 3 * (PROJECTION // 4 + PROJECTION // 64 * 4)),
        ("hqq2_g16", 3 * (PROJECTION // 4 + PROJECTION // 16 * 2)),  # two bytes for each 16
        ("q4_k_m", PROJECTION // 256 * (144 + 144 + (144 + 210) // 2)),  # super-blocks of 256
        ("q8_0", 3 * (PROJECTION + PROJECTION // 32 * 2)),  # an fp16 scale for each 32
        ("q4_0", 3 * (PROJECTION // 2 + PROJECTION // 32 * 2)),
        ("q6_k", PROJECTION // 256 * 3 * 210),
        ("q5_k_m", PROJECTION // 256 * (176 + 176 + (176 + 210) // 2)),
        ("q3_k_m", PROJECTION // 256 * (110 + 110 + (15 * 144 + 176) // 16)),
        ("q2_k", PROJECTION // 256 * (84 + 84 + 110)),
        ("iq4_xs", PROJECTION // 256 * 3 * 136),
        ("iq3_xxs", PROJECTION // 256 * 3 * 98),
        ("iq2_xxs", PROJECTION // 256 // 8 * (8 * (66 + 66) + 7 * 66 + 84)),
        ("floe", 2 * PROJECTION * 2),  # gate and down at 16 bits
    ],
)
def test_an_expert_has_the_bytes_of_its_blocks(name: str, size: int) -> None:
    """Oracle: counting blocks in whole bytes."""
    assert model().expert_bytes(name) == size
    assert PRECISION_BITS[name] == pytest.approx(size * 8 / (3 * PROJECTION))


def test_an_expert_in_q4_k_m_is_a_share_of_the_published_file() -> None:
    """Mixtral-8x7B in Q4_K_M is published at 26.4 to 28.4 GB.

    That is 4.53 to 4.87 bits for each of its 46.7 B weights.
    """
    assert 4.53 <= PRECISION_BITS["q4_k_m"] <= 4.87


def test_ten_experts_of_switch_base_take_180_mib_in_fp32() -> None:
    """EdgeMoE section 4.3: ten more experts are "approximately 180MB more".

    Each has 2 x 768 x 3072 weights of four bytes.
    """
    switch = model(hidden=768, expert_intermediate=3072, expert_matrices=2)
    assert 10 * switch.expert_bytes("fp32") == 180 * 2**20


# Contracts: C87
def test_floe_compresses_an_expert_9_23_times() -> None:
    """352.3 MB by 14.7 MB of INT2 up projection and 23.5 MB, a tenth of gate and down.

    The paper says 9.3. Scales and zeros of the up projection, which the paper leaves out and the
    device holds, make it 8.4.
    """
    up_bare = PROJECTION * 2 // 8
    tenth = 0.1 * model().expert_bytes("floe")
    assert round(model().expert_bytes("fp16") / (up_bare + tenth), 2) == 9.23
    assert (
        model().resident_bytes("floe") == PROJECTION * 2 // 8 + PROJECTION // 64 * 4 == 18_350_080
    )
    assert round(model().expert_bytes("fp16") / (model().resident_bytes("floe") + tenth), 1) == 8.4


def test_nothing_of_other_precisions_stays_on_the_device() -> None:
    assert [name for name in PRECISIONS if model().resident_bytes(name)] == ["floe"]


def test_experts_without_a_gate_have_the_bits_of_up_and_down() -> None:
    two = model(expert_matrices=2)
    assert two.expert_bytes("q4_k_m") == PROJECTION // 256 * (144 + (144 + 210) // 2)
    assert two.expert_bytes("int4") == PROJECTION


# Contracts: C87
@pytest.mark.parametrize(("name", "matrices"), [("floe", 2), ("floe", 1), ("q4_k_m", 4)])
def test_bits_by_projection_need_the_projections(name: str, matrices: int) -> None:
    message = (
        f"precision {name} has bits for gate, up, down, but an expert of model mixtral has"
        f" {matrices} matrices"
    )
    with pytest.raises(ValueError, match=message):
        model(expert_matrices=matrices).expert_bytes(name)


def test_an_unknown_precision_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ValueError, match=r"unknown precision 'int3'; known: fp32, fp16.*floe"):
        model().expert_bytes("int3")


# HOBBIT's identities


def test_hobbits_three_shares_by_hand() -> None:
    """HOBBIT states 67 / 30 / 3 % of all selections.

    The first of two is always high, so 34 % of the seconds are high, 60 % low and 6 % skipped. Here
    are a hundred tokens whose first weighs 0.5 (34), 0.7 (60) and 0.95 (6).
    """
    first = [0.5] * 34 + [0.7] * 60 + [0.95] * 6
    answers = [answer for weight in first for answer in mixtral(0.0, weight)]
    assert [answers.count(answer) for answer in (0, 1, SKIP)] == [134, 60, 6]


def mixtral(*scores: float) -> list[int]:
    """The answers at the thresholds of HOBBIT section 3.2 for Mixtral."""
    choice = SimpleNamespace(site=0, needs=[3, 5], scores=list(scores))
    return list(ScoreThreshold("fp16", "int4", 0.6, 0.9).select(choice, holds()))


@pytest.mark.parametrize(
    ("first_weight", "answers"),
    [
        (0.5, [0, 0]),
        (0.6, [0, 0]),
        (0.75, [0, 1]),
        (0.9, [0, 1]),
        (math.nextafter(0.9, 1), [0, SKIP]),
        (1.0, [0, SKIP]),
    ],
)
def test_equation_2_for_two_experts_at_mixtrals_thresholds(
    first_weight: float, answers: list[int]
) -> None:
    """The second's score is the first's weight, from 0.5 (a tie) to 1."""
    assert mixtral(0.0, first_weight) == answers


# Light experts


def test_a_light_expert_is_left_out_even_where_it_is_there() -> None:
    """The second of two weighs less than 0.25 where the first weighs more than 0.75."""
    light = SkipLight("fp16", skip_above=0.75)
    choice = SimpleNamespace(site=2, needs=[0, 1, 2], scores=[0.0, 0.75, ABOVE_T2])
    assert list(light.select(choice, holds((0, 2, 2)))) == [0, 0, SKIP]
    assert (light.permitted(0.75), light.permitted(ABOVE_T2)) == ((0,), (SKIP,))


def test_a_light_experts_threshold_is_the_quantile_of_the_scores() -> None:
    """Of 0, 0.01 .. 1 the 0.876 quantile is 0.876; given outright, no profile changes it."""
    for light, threshold in (
        (SkipLight("fp16", None, 0.876), 0.876),
        (SkipLight("fp16", 0.5, 0.876), 0.5),
    ):
        light.profile(np.linspace(0, 1, 101))
        assert light.skip_above == pytest.approx(threshold)


@pytest.mark.parametrize(
    ("skip_above", "quantile", "message"),
    [
        (None, None, r"give precision\.skip_above, or precision\.quantile"),
        (1.5, None, r"precision\.skip_above=1\.5 must be a share in 0\.\.1"),
        (None, 2, r"precision\.quantile=2 must be a share in 0\.\.1"),
        ("much", None, r"precision\.skip_above"),
    ],
)
def test_a_threshold_of_light_experts_that_is_none_is_refused(
    skip_above: Any, quantile: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SkipLight("fp16", skip_above, quantile)


# A bit-width of its own for every expert

USES = np.array([[9, 1, 5, 5], [7, 0, 5, 2]])
"""Tokens that chose each of four experts, at two sites."""


@pytest.mark.parametrize(
    ("low_share", "low"),
    [
        (0.0, set()),
        (0.375, {(1, 1), (0, 1), (1, 3)}),  # uses 0, 1, 2
        (0.5, {(1, 1), (0, 1), (1, 3), (0, 2)}),  # then the first of three with 5 uses
        (0.49, {(1, 1), (0, 1), (1, 3)}),  # 3.92 of 8, rounded down
        (1.0, {(site, expert) for site in range(2) for expert in range(4)}),
    ],
)
def test_the_least_used_experts_have_the_lower_width(
    low_share: float, low: set[tuple[int, int]]
) -> None:
    selector = PerExpert("int4", "int2", low_share)
    selector.profile(USES)
    found = {
        (site, expert)
        for site in range(2)
        for expert, precision in enumerate(every(selector, site))
        if precision == 1
    }
    assert found == low


def every(selector: PerExpert, site: int, *order: int) -> list[int]:
    needs = list(order) or [0, 1, 2, 3]
    return list(selector.select(SimpleNamespace(site=site, needs=needs), holds()))


def test_a_table_says_which_and_no_profile_changes_it() -> None:
    selector = PerExpert("int4", "int2", 1.0, [["int4", "int2"], ["int2", "int2"]])
    assert not selector.needs_uses
    selector.profile(np.zeros((2, 2), np.int64))
    assert every(selector, 0, 1, 0) == [1, 0], "in the order of the needs"
    assert every(selector, 1, 1, 0) == [1, 1]
    selector.check_shape(Shape(2, 2, 1))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            [["int4", "int8"]],
            (
                r"precision\.table\[0\]=\['int4', 'int8'\] must be a list of int4 or int2, one an"
                r" expert"
            ),
        ),
        (["int4"], r"precision\.table\[0\]='int4' must be a list"),
        ([["int4"], [4]], r"precision\.table\[1\]=\[4\]"),
    ],
)
def test_a_table_of_other_names_is_refused(table: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PerExpert("int4", "int2", 0.0, table)


def test_a_table_of_another_shape_is_refused() -> None:
    selector = PerExpert("int4", "int2", 0.0, [["int4", "int2"], ["int2"]])
    with pytest.raises(
        ValueError,
        match=r"names 2 sites of \[1, 2\] experts, but the model has 2 of 2; give one row",
    ):
        selector.check_shape(Shape(2, 2, 1))


# Low precision for what few rows chose


def fate(
    rows: int,
    needs: int,
    *,
    held: tuple[tuple[int, int, int], ...] = (),
    gate: bool = True,
    **changes: Any,
) -> Any:
    choice = SimpleNamespace(site=2, needs=list(range(needs)), experts=np.zeros((rows, 2)))
    if gate:
        choice.tick = 7
    return list(
        LowForFew("int4", "int2", **({"low_share": 0.25} | changes)).select(choice, holds(*held))
    )


def test_the_least_popular_quarter_of_a_prompts_experts_is_low() -> None:
    """Of eight activated experts two are low; of seven 1.75, rounded down; of three none.

    Needs come most popular first.
    """
    assert fate(5, 8) == [0] * 6 + [1] * 2
    assert fate(5, 7) == [0] * 6 + [1]
    assert fate(5, 3) == [0] * 3
    assert fate(5, 8, gate=False) == [0] * 6 + [1] * 2, "a forecast of a prompt's as well"
    assert fate(5, 4, low_share=1.0) == [1] * 4


def test_a_decoded_tokens_experts_are_high() -> None:
    assert fate(1, 4) == [0] * 4


def test_what_a_decoded_tokens_gate_does_not_find_is_low_if_so_told() -> None:
    """Resident at high precision: high. Resident at low only, elsewhere, or nowhere: low.

    A forecast is high.
    """
    held = ((0, 2, 0), (1, 2, 1), (0, 1, 2))
    assert fate(1, 4, held=held, low_if_absent=True) == [0, 1, 1, 1]
    assert fate(1, 4, held=held, low_if_absent=True, gate=False) == [0] * 4
    assert fate(2, 4, low_if_absent=True) == [0, 0, 0, 1], "a prompt goes by popularity alone"


@pytest.mark.parametrize("share", [None, [0.1, 0.2], [-0.01], [1.01]])
def test_a_fit_tells_one_share_of_low_precision(share: list[float] | None) -> None:
    selector = LowForFew("int4", "int2", 0.25)
    widths = {"high": "int4", "low": "int2"}
    for end in (0.0, 1.0):
        selector.know(widths, {"low_share": np.array([end])})
        assert selector.low_share == end
    with pytest.raises(
        FitError, match=r"^array low_share of the fit must be one share in 0\.\.1; fit again$"
    ):
        selector.know(widths, {} if share is None else {"low_share": np.array(share)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LowForFew("int4", "int4", 0.25), "need two different precisions"),
        (lambda: LowForFew("int4", "int2", 1.25), r"precision\.low_share=1\.25 must be a share"),
        (lambda: LowForFew("int4", "int2", 0.25, "yes"), r"precision\.low_if_absent"),  # type: ignore[arg-type]
        (lambda: PerExpert("int4", "int2", -0.1), r"precision\.low_share=-0\.1"),
        (lambda: PerExpert("int2", "int2"), "need two different precisions"),
    ],
)
def test_selectors_refuse_what_makes_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
