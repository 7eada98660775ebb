"""Words of a command become values, or are refused unchanged."""

from __future__ import annotations

import pytest

from sim.process.words import words_of


def test_words_give_their_values_by_key_and_the_last_of_several_counts() -> None:
    words = ["log=a.csv", "name=one", "columns=x:y=z", "name=other"]
    assert words_of(words, ("log", "name", "columns"), "") == {
        "log": "a.csv",
        "name": "other",
        "columns": "x:y=z",
    }
    assert words_of([], ("log",), "") == {}


@pytest.mark.parametrize("word", ["log", "log=", "=a.csv", "logs=a.csv", ""])
def test_the_first_wrong_word_is_refused_as_it_stands(word: str) -> None:
    with pytest.raises(ValueError, match=f"^'{word}' is no log=FILE$"):
        words_of(["log=b.csv", word, "nothing"], ("log",), "is no log=FILE")
