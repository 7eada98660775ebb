"""The page of a leaderboard: one file with its rows and a script that sorts and filters them.

It asks no network. What a row holds is in ``leaderboard.csv`` as well.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.board.entries import Board, Entry, Left, matrix
from sim.results.intervals import MIN_SEQUENCES, OVER
from sim.results.labels import Labels, told
from sim.results.paired import Paired

TEMPLATE = Path(__file__).with_name("page.html")


def page(
    boards: Sequence[Board],
    left: Sequence[Left],
    against: str,
    certificates: Mapping[tuple[str, str], str],
    command: str,
) -> str:
    """The page as text. ``against`` is whom entrants are compared with at first; ``certificates``
    are files by names of board and entrant.
    """
    data = [_board(one, against, certificates) for one in boards]
    # "<" would let a name of a board end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = TEMPLATE.read_text(encoding="utf-8")
    return (
        template.replace("<!--ABOUT-->", _about(boards, command))
        .replace("<!--LEFT-->", _left(left))
        .replace("/*DATA*/", text)
    )


def _about(boards: Sequence[Board], command: str) -> str:
    # What is an entrant's own stands in its row.
    named = [
        (one.name, replace(one.labels, lossy=None, knows_future=None, reference=None))
        for board in boards
        for one in board.entries
    ]
    notes = (
        f"Made by: {command}",
        OVER,
        "Each interval is of one pair. Of many pairs that differ by chance alone, one in twenty is"
        " called faster or slower all the same.",
        "Can gain at most: the whole run, prompts included, over a proven lower bound for any cache,"
        " prefetch and schedule with the same bytes, initial contents and permitted precisions.",
        "Lossy entrants do not compute what the model computes; entrants in italics are bounds that"
        " no system reaches.",
    )
    return "".join(
        [
            *(f"<p class='warning'>{html.escape(text)}</p>" for text in told(named)),
            *(f"<p class='note'>{html.escape(text)}</p>" for text in notes),
        ]
    )


def _left(left: Sequence[Left]) -> str:
    """What is not entered, by reason; words that all of them have are left out."""
    if not left:
        return ""
    shared = set.intersection(*(set(one.words.split()) for one in left))
    by_why: dict[str, list[str]] = {}
    for one in left:
        own = [word for word in one.words.split() if word not in shared]
        by_why.setdefault(one.why, []).append(" ".join(own))
    items = "".join(
        f"<li>{html.escape(why)}<br><code>{html.escape(chr(10).join(words))}</code></li>"
        for why, words in by_why.items()
    )
    return f"<details><summary>{len(left)} not entered, and why</summary><ul>{items}</ul></details>"


def _board(
    board: Board, against: str, certificates: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    base = board.entry(against)
    return {
        "name": board.name,
        "title": board.title,
        "said": coverage_of(board),
        "against": base.name if base is not None else board.entries[0].name,
        "entries": [
            _entry(one, certificates.get((board.name, one.name), "")) for one in board.entries
        ],
        "pairs": [[_pair(pair) for pair in line] for line in matrix(board)],
    }


def coverage_of(board: Board) -> str:
    """In words, how often an interval of this board covers the truth, and why it has no verdicts
    where sequences are too few.
    """
    covers = board.coverage
    if covers is None:
        return "One sequence, or one batch: no intervals."
    told = (
        f"Intervals cover the truth in {covers.lowest:.1%} to {covers.highest:.1%} of simulated"
        " pairs with sequences of these lengths."
    )
    count = np.count_nonzero(board.entries[0].decode_ns)
    if count >= MIN_SEQUENCES:
        return told
    return f"{told} No verdicts: {count} independent sequences, and {MIN_SEQUENCES} are needed."


def _entry(one: Entry, certificate: str) -> dict[str, Any]:
    low, high = one.interval or (None, None)
    return {
        "name": one.name,
        "part": one.part,
        "kind": one.kind,
        "tokens": one.tokens_per_s,
        "low": low,
        "high": high,
        "hits": one.row["hit_ratio"],
        "gain": one.gain,
        "own": _own(one.labels) or one.kind,
        "command": one.command,
        "certificate": certificate,
    }


def _own(labels: Labels) -> str:
    """What a reader must know of an entrant itself."""
    return "; ".join(
        text for text in (labels.knows_future, labels.reference, labels.lossy) if text is not None
    )


def _pair(pair: Paired | None) -> list[Any] | None:
    if pair is None:
        return None
    low, high = pair.interval or (None, None)
    verdict = pair.verdict if pair.is_decided else "?"
    return [pair.speedup, low, high, verdict]
