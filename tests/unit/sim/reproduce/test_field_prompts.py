"""Prompts that others read with several cards: what the file holds, by hand, and on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

from sim.reproduce.field_prompts import Prompt, prompts, prompts_table

PAGE = Path("docs/field.md").read_text(encoding="utf-8")


def test_cards_that_overlap_chunks_gain_by_hand() -> None:
    """Two chunks of 100 rows, two cards with 1 and 3 of 4 layers: 100, then 300 and 300."""
    one = Prompt("a", "https://b", "c", 200, 100, (1, 3), 10, 11)
    assert one.predicted == 200 * 4 / (100 + 300 + 300)
    assert one.gain == 1.1
    # A chunk of all tokens, and one card, gain nothing.
    assert replace(one, chunk=200).predicted == replace(one, layers=(4,)).predicted == 1
    # The last chunk has what is left: 100 rows, then 1.
    assert replace(one, tokens=101).predicted == 101 * 4 / (100 + 300 + 3)


def test_published_gains_are_within_eight_per_cent_by_rows_and_layers_alone() -> None:
    found = prompts()
    assert len(found) == 11
    assert {one.source.rsplit("/", 2)[1] for one in found} == {"2026-09-30-layer-split-2080ti"}
    errors = [one.predicted / one.gain - 1 for one in found]
    assert max(map(abs, errors)) == pytest.approx(0.075, abs=5e-4)
    assert median(map(abs, errors)) == pytest.approx(0.030, abs=5e-4)
    # The order of the splits of one prompt is the published one.
    splits = [one for one in found if one.tokens == 16_000 and one.alone == 795]
    assert [one.layers for one in sorted(splits, key=lambda one: one.predicted)] == [
        one.layers for one in sorted(splits, key=lambda one: one.gain)
    ]


def test_the_page_has_the_table_that_is_printed() -> None:
    table = prompts_table(prompts())
    cells = [list(column.cells) for column in table.columns]
    for row in zip(*cells, strict=True):
        assert f"| {' | '.join(map(str, row))} |" in PAGE
    console = Console(width=120, record=True)
    console.print(table)
    assert "st-2080-16k-k36" in console.export_text()
