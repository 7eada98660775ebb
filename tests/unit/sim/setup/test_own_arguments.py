"""A policy of one's own that changes what it is given makes another run: it is refused by name."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.machine.model import Model
from sim.policies.base import PrecisionSelector, Predictor
from sim.policies.recency import LRU
from sim.policies.requires import NOTHING, Requires
from sim.setup import own_arguments
from sim.setup.own_arguments import EVERY, FIRST
from sim.setup.own_policies import check_answers
from sim.setup.own_said import check_said
from sim.study.trials import prepared, trial
from sim.values.types import Geometry

GEOMETRY = Geometry(4, 8, 2, ("fp16", "int4"), (16.0, 4.0), (100, 25), 1000)
MODEL = Model("m", 4, 8, 2, 8, 16, 2, 2, 4, 16, "by hand")
KEYS = [3, 1]


class Sorts(LRU):
    def on_requests(self, keys: Any, wanted: Any, outcomes: Any, gate: Any) -> None:
        keys.sort()


class Unblocks(LRU):
    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        yield 0
        blocked[1] = 0
        yield 1


class Zeroes(Predictor):
    def predict(self, gate: Any) -> Iterator[Any]:
        return iter(())

    def observe(self, gate: Any) -> None:
        gate.experts[:] = 0


def checked(section: str, policy: Any) -> Any:
    check_answers({section: policy}, GEOMETRY)
    return policy


def test_a_list_that_was_given_may_not_be_changed() -> None:
    cache = checked("cache", Sorts("global", initial="ascending"))
    with pytest.raises(ValueError, match=r"^cache: \S+\.Sorts: `on_requests` changes keys, which"):
        cache.on_requests(KEYS.copy(), [0, 0], [1, 1], SimpleNamespace())


def test_after_the_first_calls_one_of_many_is_watched() -> None:
    """A policy that is asked at every gate of a long run is as fast as it is."""
    cache, refused = checked("cache", Sorts("global", initial="ascending")), []
    for number in range(FIRST + 3 * EVERY):
        try:
            cache.on_requests(KEYS.copy(), [0, 0], [1, 1], SimpleNamespace())
        except ValueError:
            refused.append(number)
    assert refused[:FIRST] == [*range(FIRST)]
    assert refused[FIRST:] == [n for n in range(FIRST, FIRST + 3 * EVERY) if n % EVERY == 0]


def test_what_only_numbers_are_told_to_is_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(named: Any) -> Any:
        raise AssertionError(named)

    monkeypatch.setattr(own_arguments, "_kept", copied)
    told = []

    class Notes(LRU):
        def on_evict(self, key: int) -> None:
            told.append(key)

    cache = checked("cache", Notes("global", initial="ascending"))
    cache.on_evict(3)
    assert told == [3]
    with pytest.raises(AssertionError):
        cache.on_requests(KEYS, [0, 0], [1, 1], SimpleNamespace())


class Draws(PrecisionSelector):
    """Every question has another answer each time."""

    precisions = ("fp16", "int4")

    def __init__(self) -> None:
        self.asked = 0

    def select(self, choice: Any, resident: Any) -> Any:
        self.asked += 1
        return [self.asked % 2] * len(choice.needs)


class Rotates(LRU):
    """A hand that moves when victims are asked for, as in a clock that is written in one place."""

    def __init__(self) -> None:
        super().__init__("global", initial="ascending")
        self.hand = 0

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        yield 9
        self.hand += 1
        yield self.hand


def test_a_question_that_changes_its_policy_is_refused() -> None:
    """Runs with it said times that no other run confirmed."""
    selector = checked("precision", Draws())
    told = r"\.Draws: `select` answers \[1, 1\] and, asked again at once, \[0, 0\]: a question must"
    with pytest.raises(ValueError, match=told):
        selector.select(SimpleNamespace(needs=[1, 2], site=0), None)
    victims = checked("cache", Rotates()).victims(0, 5, bytearray(20))
    assert next(victims) == 9
    with pytest.raises(
        ValueError, match=r"\.Rotates: `victims` answers 1 and, asked again at once, 2"
    ):
        next(victims)


def test_an_answer_that_ends_earlier_when_asked_again_is_refused() -> None:
    class Takes(LRU):
        def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
            while left:
                yield left.pop()

    left = [1]
    with pytest.raises(ValueError, match=r"`victims` answers 1 and, asked again at once, nothing"):
        next(checked("cache", Takes("global", initial="ascending")).victims(0, 5, bytearray(9)))
    same = iter((1, 2))

    class Same(LRU):
        def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
            return same

    with pytest.raises(
        ValueError, match=r"`victims` gives the same iterator when it is asked again"
    ):
        next(checked("cache", Same("global", initial="ascending")).victims(0, 5, bytearray(9)))


def test_an_array_of_a_gate_may_not_be_changed() -> None:
    gate = SimpleNamespace(needs=KEYS, experts=np.array([KEYS]))
    with pytest.raises(ValueError, match=r"\.Zeroes: `observe` changes gate\.experts, which"):
        checked("predictor", Zeroes()).observe(gate)


def test_what_is_blocked_may_not_be_changed_between_two_victims() -> None:
    blocked = bytearray(b"\0\1\0\1")
    victims = checked("cache", Unblocks("global", initial="ascending")).victims(0, 5, blocked)
    assert next(victims) == 0
    blocked[3] = 0  # the controller's own change is not the policy's
    with pytest.raises(ValueError, match=r"\.Unblocks: `victims` changes blocked, which it may"):
        next(victims)


def test_who_changes_nothing_answers_as_before() -> None:
    class Copies(LRU):
        def on_requests(self, keys: Any, wanted: Any, outcomes: Any, gate: Any) -> None:
            sorted(keys)

        def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
            return iter((2, 0))

    cache = checked("cache", Copies("global", initial="ascending"))
    cache.on_requests(KEYS, [0, 0], [1, 1], SimpleNamespace(needs=KEYS))
    assert list(cache.victims(0, 5, bytearray(4))) == [2, 0]
    assert type(cache).__qualname__ == Copies.__qualname__


def test_a_method_with_other_arguments_is_refused_before_the_run() -> None:
    class Short(LRU):
        def victims(self, pool: int) -> Iterator[int]:  # type: ignore[override]
            return iter(())

    told = (
        r"\.Short: `victims` takes \(pool: 'int'\) -> 'Iterator\[int\]', and is given \(pool,"
        r" incoming, blocked\); write it as sim\.policies\.base\.CachePolicy\.victims is$"
    )
    with pytest.raises(ValueError, match=told):
        check_said({"cache": Short("global", initial="ascending")}, MODEL)


def test_what_an_interface_leaves_to_the_class_must_be_said() -> None:
    class Silent(PrecisionSelector):
        def select(self, choice: Any, resident: Any) -> Sequence[int]:
            return [0]

    with pytest.raises(
        ValueError, match=r"\.Silent has no precisions; say it in the class, as sim"
    ):
        check_said({"precision": Silent()}, MODEL)  # type: ignore[abstract]


# Contracts: C113
def test_a_run_whose_cache_sorts_its_requests_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said 43.8 % served by other experts, and a time."""
    source = """
        from sim.policies.recency import LRU

        class Sorting(LRU):
            def on_requests(self, keys, wanted, outcomes, gate):
                super().on_requests(keys, wanted, outcomes, gate)
                keys.sort()
        """
    (tmp_path / "sorting.py").write_text(textwrap.dedent(source), encoding="utf-8")
    (tmp_path / "cache").mkdir()
    text = "_target_: sorting.Sorting\nscope: global\ninitial: ascending\n"
    (tmp_path / "cache" / "sorting.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "cache" / "nothing.yaml").write_text("scope: global\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words: tuple[str, ...] = ("system=lru", "trace.max_sequences=1", "workload.decode_tokens=2")
    words += ("budget.resident_share=0.3", f"hydra.searchpath=[file://{tmp_path}]")
    with pytest.raises(ValueError, match=r"^cache: sorting\.Sorting: `on_requests` changes keys"):
        trial((*words, "cache=sorting"))
    with pytest.raises(ValueError, match=r"^cache: the chosen file has no _target_"):
        prepared((*words, "cache=nothing"))


class Reads(Predictor):
    """Reads something of its gates, in a method that answers and in one that learns."""

    learns = True

    def __init__(self, name: str, declared: Requires) -> None:
        self.name, self.declared = name, declared

    @property
    def requires(self) -> Requires:
        return self.declared

    def predict(self, gate: Any) -> Iterator[Any]:
        yield from getattr(gate, self.name) or ()

    def observe(self, gate: Any) -> None:
        assert gate.site == 2
        getattr(gate, self.name)

    def afresh(self) -> Any:
        return Reads(self.name, self.declared)


DECLARED = {
    "gate_input": ("gate_inputs=True", Requires(gate_inputs=True)),
    "preferences": ("preferences=True", Requires(preferences=True)),
    "share": ("active_shares=True", Requires(active_shares=True)),
    "routed": ("lookahead_sites=...", Requires(lookahead_sites=1)),
    "lookahead": ("lookahead_sites=...", Requires(lookahead_sites=1)),
}


@pytest.mark.parametrize(("name", "declaration"), DECLARED.items())
def test_what_a_policy_has_not_declared_it_cannot_read_and_is_told_the_declaration(
    name: str, declaration: tuple[str, Requires]
) -> None:
    word, requires = declaration
    gate = SimpleNamespace(site=2, step=0, needs=[], **{name: None})
    undeclared, declared = (checked("predictor", Reads(name, one)) for one in (NOTHING, requires))
    missing = rf"`{name}` was not asked for; declare requires = Requires\({re.escape(word)}\)"
    where = rf"\(\S+{Path(__file__).name}, line \d+, in "
    for method in ("predict", "observe"):
        told = rf"^predictor: \S+\.Reads: `{method}` ended with RuntimeError: {missing} {where}"
        with pytest.raises(ValueError, match=told):
            [*(getattr(undeclared, method)(gate) or ())]
        assert not [*(getattr(declared, method)(gate) or ())]


def test_a_policy_reads_no_more_where_the_rest_of_its_run_declares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOBBIT's predictor has lookahead scores, which this cache of its run reads unasked."""
    (tmp_path / "peeps.py").write_text(
        textwrap.dedent("""\
            from sim.policies.recency import LRU


            class Peeps(LRU):
                def on_requests(self, keys, wanted, outcomes, gate):
                    gate.lookahead(1)
            """)
    )
    words = ["system=hobbit", "cache=lru", "++cache._target_=peeps.Peeps", "precision=fp16"]
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"lookahead_sites=.* \(at step 0, site 0\)$"):
        trial([*words, "trace.max_sequences=1"])
