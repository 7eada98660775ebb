"""Letters that the font of figures lacks: names of users' own systems and traces may have any."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from sim.results.looks import in_font, looks, save, use_letters_of_font


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lru", "lru"),
        ("Größe \u00b5s \u2192", "Größe \u00b5s \u2192"),
        ("\u4e2d\u6587 4090", r"\u4e2d\u6587 4090"),
        ("\U0001f680\nlru", "\\U0001f680\nlru"),
    ],
)
def test_letters_that_the_font_lacks_are_written_as_their_numbers(text: str, shown: str) -> None:
    assert in_font(text) == shown


def test_a_figure_with_any_letters_is_saved_without_a_warning(tmp_path: Path) -> None:
    """The SVG has the letters themselves; ticks, titles and legends of the PNG their numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with looks("letters") as plt:
            figure, axis = plt.subplots(layout="constrained")
            axis.barh([0, 1], [1, 2], label="\u51e6\u7406")
            axis.set_yticks([0, 1], ["\u4e2d\u6587", "lru"])
            axis.set_title("\ud55c\uad6d")
            axis.legend()
            png, svg = save(figure, tmp_path / "one")
    assert all(name in svg.read_text(encoding="utf-8") for name in ("\u4e2d\u6587", "\ud55c\uad6d"))
    assert [label.get_text() for label in axis.get_yticklabels()] == [r"\u4e2d\u6587", "lru"]
    assert axis.get_title() == r"\ud55c\uad6d"
    assert axis.get_legend().get_texts()[0].get_text() == r"\u51e6\u7406"
    assert png.stat().st_size > 1000
    assert not use_letters_of_font(figure)


def test_a_figure_of_plain_letters_stays_as_it_is() -> None:
    with looks("plain") as plt:
        figure, axis = plt.subplots()
        axis.set_title("lru")
        figure.draw_without_rendering()
        before = [label.get_text() for label in axis.get_xticklabels()]
        assert not use_letters_of_font(figure)
        assert [label.get_text() for label in axis.get_xticklabels()] == before
