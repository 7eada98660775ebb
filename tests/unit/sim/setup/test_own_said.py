"""What a policy of one's own says of itself, and what it has that nobody would ever call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sim.machine.model import Model
from sim.policies.base import Payload, Placement, PrecisionSelector, Predictor
from sim.policies.recency import LRU
from sim.policies.requires import Requires
from sim.setup.own_said import check_said

pytestmark = pytest.mark.pure
MODEL = Model("m", 4, 8, 2, 8, 16, 2, 2, 4, 16, "by hand")


class Forecasts(Predictor):
    def predict(self, gate: Any) -> Iterator[Any]:
        return iter(())


class Learning(Forecasts):
    def observe(self, gate: Any) -> None:
        self.seen = gate


class Admits(LRU):
    def admit(self, key: int, victims: Sequence[int]) -> bool:
        return False


class Load(Placement):
    def place(self, gate: Any, keys: Any, resident: Any, queued: Any) -> Sequence[int]:
        return [0] * len(keys)


class Slow(Load):
    def decision_us(self, experts: int) -> float:
        return -5.0


class Whole(Payload):
    def moved_bytes(self, key: int, gate: Any, index: int) -> int:
        return 1

    def forecast_bytes(self, key: int, choice: Any, index: int, gate: Any) -> int:
        return 1

    def missing_bytes(self, key: int, gate: Any, index: int, moved_bytes: int) -> int:
        return 0


class Said(PrecisionSelector):
    precisions = ("fp16", "int4")

    def select(self, choice: Any, resident: Any) -> Sequence[int]:
        return [0] * len(choice.needs)


class Learns(Forecasts):
    learns = True


def saying(policy: Any, **said: Any) -> Any:
    for name, value in said.items():
        setattr(policy, name, value)
    return policy


@pytest.mark.parametrize(
    ("section", "policy", "told"),
    [
        ("precision", saying(Said(), precisions="fp16"), r"`precisions` is 'fp16' \(str\)"),
        ("precision", saying(Said(), precisions=("int4", "fp16")), r"these have 4, 16 bits"),
        ("precision", saying(Said(), precisions=("fp16",) * 2), r"different names of precisions"),
        ("precision", saying(Said(), constant=9), r"`constant` is 9 .* from 0 to 1"),
        ("placement", saying(Load(), constant=9), r"`constant` is 9 .* from 0 to 2"),
        ("placement", Slow(), r"`decision_us` is -5\.0 "),
        ("payload", saying(Whole(), active_share=float("nan")), r"`active_share` is nan "),
        ("predictor", saying(Forecasts(), reach=1.5), r"`reach` is 1\.5 .* from 0 to 4"),
        ("predictor", Learns(), r"`afresh` is None .* for it learns"),
        ("cache", object(), r"builtins\.object has no admit, admits_all, .*\.base\.CachePolicy$"),
        (
            "cache",
            Forecasts(),
            r"has no admit, .*; let it inherit sim\.policies\.base\.CachePolicy",
        ),
    ],
)
def test_what_a_policy_says_of_itself_is_refused_where_it_cannot_be(
    section: str, policy: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{section}: .*{told}"):
        check_said({section: policy}, MODEL)


@pytest.mark.parametrize(
    ("section", "policy", "told"),
    [
        ("predictor", Learning(), "learns = True, or `observe` is never called"),
        ("cache", Admits("global"), "admits_all = False, or `admit` is never called"),
    ],
)
def test_a_method_that_nobody_would_call_is_refused_unless_the_class_says_that_it_means_so(
    section: str, policy: Any, told: str
) -> None:
    """A predictor without ``learns`` never learnt, and a run said its speed."""
    with pytest.raises(ValueError, match=rf"^{section}: .*{told}"):
        check_said({section: policy}, MODEL)
    policy.learns, policy.admits_all = False, True
    check_said({section: policy}, MODEL)


def test_a_question_that_is_set_on_the_object_is_refused() -> None:
    """Nothing checked what it answered."""
    policy = saying(Forecasts(), predict=lambda gate: [7])
    with pytest.raises(
        ValueError, match=r"`predict` is <function .* must be a method of the class"
    ):
        check_said({"predictor": policy}, MODEL)


def test_a_forecast_as_routed_takes_lookahead() -> None:
    """It ended in a KeyError of a norm."""
    with pytest.raises(ValueError, match=r"`as_routed` is True .* lookahead_sites=1 or more"):
        check_said({"predictor": saying(Forecasts(), as_routed=True)}, MODEL)

    class Routed(Forecasts):
        as_routed = True

        @property
        def requires(self) -> Requires:
            return Requires(lookahead_sites=1)

    check_said({"predictor": Routed()}, MODEL)
