"""An error in a policy of one's own is told with its section, class, method and place: it was a
traceback, or the bare text of a ValueError that named nobody.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.policies.base import PrecisionSelector
from sim.policies.recency import LRU
from sim.policies.requires import FitError, PolicyError
from sim.setup.own_policies import check_answers
from sim.setup.sections import _target
from sim.study.trials import prepared, trial
from sim.values.types import Cause, Geometry, PoolPlan

GEOMETRY = Geometry(4, 8, 2, ("fp16", "int4"), (16.0, 4.0), (100, 25), 1000)
HERE = r"\(\S+test_own_failures\.py, line \d+, in "
WORDS = ("system=lru", "trace.max_sequences=1", "workload.decode_tokens=2")


class Fails(LRU):
    def on_insert(self, key: int, cause: Cause) -> None:
        raise KeyError(key)

    def on_evict(self, key: int) -> None:
        raise ValueError("3 is not in list")

    def pools(self, geometry: Geometry) -> PoolPlan:
        raise FitError("another model's")

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Any:
        yield 1
        raise AssertionError


class FailsLate(PrecisionSelector):
    precisions = ("fp16", "int4")

    def select(self, choice: Any, resident: Any) -> Any:
        return (len(expert) for expert in choice.needs)


def checked(section: str, policy: Any) -> Any:
    check_answers({section: policy}, GEOMETRY)
    return policy


def test_an_error_of_a_method_is_told_with_its_place() -> None:
    cache = checked("cache", Fails("global", initial="ascending"))
    who = r"^cache: \S+\.Fails: "
    with pytest.raises(PolicyError, match=who + f"`on_insert` ended with KeyError: 4 {HERE}on_ins"):
        cache.on_insert(4, Cause.DEMAND)
    with pytest.raises(PolicyError, match=who + "`on_evict` ended with ValueError: 3 is not in li"):
        cache.on_evict(4)
    victims = cache.victims(0, 5, bytearray(4))
    assert next(victims) == 1
    with pytest.raises(PolicyError, match=who + f"`victims` ended with AssertionError {HERE}vic"):
        next(victims)


def test_a_policy_that_leaves_the_program_only_ends_its_run() -> None:
    """A study ended with it, without a word."""

    class Leaves(LRU):
        def on_evict(self, key: int) -> None:
            sys.exit("done")

    with pytest.raises(
        PolicyError, match=rf"`on_evict` ended with SystemExit: done {HERE}on_evict"
    ):
        checked("cache", Leaves("global", initial="ascending")).on_evict(3)


def test_a_generator_that_is_read_after_its_call_is_told_with_its_question() -> None:
    selector = checked("precision", FailsLate())
    with pytest.raises(PolicyError, match=rf"FailsLate: `select` ended with TypeError.*{HERE}<gen"):
        selector.select(SimpleNamespace(needs=[1, 2]), None)


def test_refusals_of_the_project_and_of_fits_stay_as_they_are() -> None:
    class Refused(LRU):
        def on_evict(self, key: int) -> None:
            LRU("nowhere")

    with pytest.raises(ValueError, match=r"^unknown cache scope 'nowhere'"):
        checked("cache", Refused("global", initial="ascending")).on_evict(1)
    with pytest.raises(FitError, match=r"^another model's$"):
        checked("cache", Fails("global", initial="ascending")).pools(GEOMETRY)


def test_what_a_base_class_misses_is_told_with_the_usual_reason() -> None:
    class Forgets(LRU):
        def __init__(self) -> None:
            pass

    with pytest.raises(PolicyError, match=r"no attribute 'quotas' \(.*; does its `__init__` call"):
        checked("cache", Forgets()).on_evict(3)


def test_static_methods_answer_and_a_second_check_changes_nothing() -> None:
    class Static(LRU):
        @staticmethod
        def victims(pool: int, incoming: int, blocked: bytearray) -> Any:
            return iter((2, 0))

    cache = checked("cache", Static("global", initial="ascending"))
    once = type(cache)
    assert list(checked("cache", cache).victims(0, 5, bytearray(4))) == [2, 0]
    assert type(cache) is once


def test_a_run_that_its_policy_ends_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its first gate: by its constructor, its declarations and what it is given."""
    (tmp_path / "cache").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name, method in (
        ("ends_making", "def __init__(self): {}['a']"),
        ("ends_declaring", "requires = property(lambda self: {}['a'])"),
        ("ends_preparing", "def prepare(self, given): given.future"),
        ("ends_running", "def on_requests(self, *told): {}['a']"),
        ("ends_telling", "def told(self, sequences): return {'waves': 0, 'mine': 3}"),
    ):
        source = f"from sim.policies.recency import LRU\nclass Ends(LRU):\n    {method}\n"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        text = f"_target_: {name}.Ends\n"
        (tmp_path / "cache" / f"{name}.yaml").write_text(text, encoding="utf-8")
    place = r"\(\S+ends_\w+\.py, line 3, in "
    found = f"hydra.searchpath=[file://{tmp_path}]"
    for name, told in (
        ("ends_making", rf"ends_making\.Ends ended with KeyError: 'a' {place}__init__"),
        (
            "ends_declaring",
            rf"ends_declaring\.Ends: `requires` ended with KeyError: 'a' {place}<lam",
        ),
        (
            "ends_preparing",
            rf"ends_preparing\.Ends: `prepare` ended with RuntimeError: .* {place}pre",
        ),
    ):
        with pytest.raises(ValueError, match=f"^cache: {told}"):
            prepared((*WORDS, found, f"cache={name}"))
    with pytest.raises(
        ValueError, match=rf"^cache: ends_running\.Ends: `on_requests` .* {place}on_"
    ):
        trial((*WORDS, found, "cache=ends_running"))
    with pytest.raises(
        ValueError, match=r"^ends_telling\.Ends: `told` has waves, which the summary's contracts"
    ):
        trial((*WORDS, found, "cache=ends_telling"))


def test_a_class_that_serves_both_tiers_tells_what_it_has_to_tell_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counting.py").write_text(
        textwrap.dedent("""\
            from sim.policies.recency import LRU


            class Counts(LRU):
                heard = 0

                def on_requests(self, keys, *others):
                    super().on_requests(keys, *others)
                    self.heard += len(keys)

                def told(self, sequences):
                    return {"heard": self.heard}
            """)
    )
    words = ["hardware=rtx4090_nvme", "cache._target_=counting.Counts"]
    one = trial((*WORDS, *words)).summary["contracts"]
    both = trial((*WORDS, *words, "ram_cache._target_=counting.Counts")).summary["contracts"]
    assert both["cache.heard"] == one["heard"] > both["ram_cache.heard"] > 0
    assert "heard" not in both


def test_a_class_of_a_notebook_runs_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class MRU(LRU):
        def victims(self, pool: int, incoming: int, blocked: bytearray) -> Any:
            return (key for key in reversed(self._orders[pool]) if not blocked[key])

    MRU.__module__, MRU.__qualname__ = "__main__", "MRU"
    monkeypatch.setattr(sys.modules["__main__"], "MRU", MRU, raising=False)
    _target.cache_clear()
    words = (*WORDS, "budget.resident_share=0.3")
    recent, usual = (trial(w).summary for w in ((*words, "cache._target_=__main__.MRU"), words))
    assert recent["system"] == "lru cache._target_=__main__.MRU"
    assert recent["lookups"] != usual["lookups"]
