"""Words of `moelab real` that would change nothing are refused."""

from __future__ import annotations

import pytest

from real.setup.prepare import check_words
from sim.setup.configure import configure


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["live.sequences=1"], "live.sequences=1 changes nothing with input=replay; leave it out,"),
        (["+live.x=1"], "+live.x=1 changes nothing with input=replay; leave it out, or say input="),
        (["input=live", "trace.max_sequences=1"], "trace.max_sequences=1 changes nothing with"),
        (["input=live", "trace.split=fit"], "trace.split=fit changes nothing with input=live;"),
        (["device=null", "engine.links=free"], "engine.links=free changes nothing on device=null"),
        (["device=null", "engine.compute=free"], "engine.compute=free changes nothing on device="),
    ],
)
def test_a_word_that_changes_nothing_is_refused(words: list[str], told: str) -> None:
    cfg, _ = configure("system=lru", *words, config="real")
    with pytest.raises(ValueError, match=r"changes nothing") as refused:
        check_words(cfg, words)
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    "words",
    [
        ["trace.max_sequences=1", "engine.links=free"],
        ["input=live", "live.sequences=1", "trace=tiny_mixtral"],
        ["device=null", "engine.links=paced", "engine.patience_s=9"],
    ],
)
def test_a_word_that_counts_is_taken(words: list[str]) -> None:
    cfg, _ = configure("system=lru", *words, config="real")
    check_words(cfg, words)
