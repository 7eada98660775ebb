"""What is printed as it stands."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from sim.process.printing import print_text

TEXT = (
    "[bold]lru[/bold] is 1.23x [1.12, 1.35] of https://where.it/is, and 12 more words follow :fire:"
)


def test_on_a_narrow_terminal_with_colours_a_text_is_printed_to_the_letter() -> None:
    out = StringIO()
    print_text(Console(file=out, force_terminal=True, color_system="truecolor", width=20), TEXT)
    assert out.getvalue() == TEXT + "\n"
