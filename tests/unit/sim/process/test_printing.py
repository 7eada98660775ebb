"""What is printed as it stands."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table

from sim.process.printing import NARROW, print_text, with_whole_words

TEXT = (
    "[bold]lru[/bold] is 1.23x [1.12, 1.35] of https://where.it/is, and 12 more words follow :fire:"
)


def test_on_a_narrow_terminal_with_colours_a_text_is_printed_to_the_letter() -> None:
    out = StringIO()
    print_text(Console(file=out, force_terminal=True, color_system="truecolor", width=20), TEXT)
    assert out.getvalue() == TEXT + "\n"


def test_lines_of_a_table_break_between_words_only_however_narrow_it_is() -> None:
    table, out = Table("the run", "tokens/s (95%)", **NARROW), StringIO()
    table.add_row("imp30c-s244", "51.86 [50.1, 53.2]")
    Console(file=out, width=12).print(with_whole_words(table), crop=False)
    words = out.getvalue().split()
    for word in ("the", "run", "tokens/s", "(95%)", "imp30c-s244", "51.86", "[50.1,", "53.2]"):
        assert word in words


def test_a_table_without_rows_has_its_heads() -> None:
    out = StringIO()
    Console(file=out, width=4).print(with_whole_words(Table("tokens", **NARROW)), crop=False)
    assert "tokens" in out.getvalue().split()
