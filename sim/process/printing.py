"""How a command says a sentence: word for word, whatever it is made of."""

from __future__ import annotations

from rich.console import Console


def print_text(console: Console, text: str) -> None:
    """Print ``text`` as it stands. Names of runs have brackets, which are no markup; a terminal's
    width breaks no line, for the next program reads them; numbers have no colours of their own.
    """
    console.out(text, highlight=False)
