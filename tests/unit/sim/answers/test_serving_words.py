"""What is told of a handover, word by word."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sim.answers.serving import Point, Profile
from sim.answers.serving_words import points_of, replay_command, told_of
from sim.results.labels import Labels

POINTS = (
    Point(1, 100, 12.345, 8, 99.5, None),
    Point(2, 4096, 1234.5, 16, 7.0, 0.256),
)


@pytest.mark.parametrize(
    ("labels", "after"),
    [(Labels(), ""), (Labels(synthetic="made gates"), " [made gates]")],
)
def test_what_the_times_are_of_and_where_they_hold(labels: Labels, after: str) -> None:
    found = Profile(POINTS, 0.12345, labels)
    assert told_of(found, "m", "rtx", "its own gates") == (
        "m on rtx, with 12.35% of the expert bytes on the device beside the keys and values of 2"
        " sequences of 4,096 tokens: 2 mean step times, from its own gates. They hold for this mix"
        " of requests: hits depend on what ran before, which a table of times cannot carry." + after
    )


def test_the_table_has_each_time_by_batch_and_context_and_its_labels_below() -> None:
    text = io.StringIO()
    table = points_of(Profile(POINTS, 0.5, Labels(synthetic="made [gates]")))
    Console(file=text, width=100).print(table)
    title, _, head, _, first, second, _, caption = text.getvalue().splitlines()
    assert title.strip() == "step times of one node"
    assert head.split("  ")[0] == " batch" or head.split()[0] == "batch"
    assert first.split() == ["1", "100", "12.35", "8", "99.5", "-"]
    assert second.split() == ["2", "4,096", "1234", "16", "7", "25.6%"]
    assert caption.strip() == "made [gates]"


def test_the_command_reads_the_files_by_their_names() -> None:
    assert replay_command(8) == (
        "python -m dynamo.replay requests.jsonl --trace-format mooncake --trace-block-size 8"
        ' --num-workers 4 --extra-engine-args "$(cat engine.json)"'
    )
