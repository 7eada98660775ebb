"""A policy that names a victim which may not go ends its run: it would be told hits that no cache
can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sim.core.slots import names_first
from sim.policies.recency import LRU
from sim.policies.weighted_score import WeightedScore
from sim.setup.execute import execute
from sim.study.trials import prepared

Victims = Callable[[LRU, int, int, bytearray], Iterator[int]]
WORDS = (
    "system=lru",
    "trace.max_sequences=2",
    "workload.prompt_tokens=4",
    "workload.decode_tokens=4",
    "budget.resident_share=0.25",
)
WRONG: dict[str, tuple[Victims, str]] = {
    "who forgets what is blocked": (
        lambda self, pool, incoming, blocked: iter(reversed(self._orders[pool])),
        r"site \d+ expert \d+ fp16, which is blocked: it is needed, or forecast",
    ),
    "who names what comes": (
        lambda self, pool, incoming, blocked: iter((incoming,)),
        r"site \d+ expert \d+ fp16, which is blocked: it is needed, or forecast",
    ),
    "who names what is not there": (
        lambda self, pool, incoming, blocked: (
            key for key in range(len(blocked)) if key not in self._orders[pool] and not blocked[key]
        ),
        r"site \d+ expert \d+ fp16, which is not resident",
    ),
    "who names no key": (
        lambda self, pool, incoming, blocked: iter((-2,)),
        r"key -2, and keys are from 0 to 143",
    ),
}


@pytest.mark.pure
@pytest.mark.parametrize("who", WRONG)
def test_a_victim_that_may_not_go_is_named_with_why(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victims, why = WRONG[who]
    run = prepared(WORDS)
    monkeypatch.setattr(LRU, "victims", victims)
    with pytest.raises(
        ValueError,
        match=rf"^LRU: `victims` names {why}\. It must name .* \(at step \d+, site \d+\)$",
    ):
        execute(run)


@pytest.mark.pure
@pytest.mark.parametrize("retention", ["strict", "after_batch"])
def test_a_victim_of_another_pool_is_none(retention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepared([*WORDS, "cache=lru_per_site", f"loader.retention={retention}"])

    def of_the_others(self: LRU, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        return (
            key
            for other, keys in enumerate(self._orders)
            for key in keys
            if other != pool and not blocked[key]
        )

    monkeypatch.setattr(LRU, "victims", of_the_others)
    with pytest.raises(ValueError, match=r"fp16, which is of pool \d+, not \d+\. It must name"):
        execute(run)


def test_a_first_victim_counts_only_where_no_class_below_says_other_victims() -> None:
    class Others(WeightedScore):
        def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
            return iter(())

    class Both(Others):
        def first_victim(self, pool: int, incoming: int, blocked: bytearray) -> int:
            return -1

    asked = [names_first(kind) for kind in (WeightedScore, Others, Both, LRU)]
    assert asked == [True, False, True, False]
