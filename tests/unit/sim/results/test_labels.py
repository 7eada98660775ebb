"""What a reader must know of a run: each kind of label by a run that has it.

The labels of several runs are told together.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.textpath import TextPath

from sim.machine.validated import Validated
from sim.results.labels import (
    Labels,
    _machine,
    caption,
    error_of,
    fitted,
    from_row,
    labels_in,
    labels_of,
    synthetic_label,
    told,
    write_on,
)
from sim.setup.execute import execute
from sim.study.trials import prepared, trial

FEW = ("model=tiny_mixtral", "trace.max_sequences=1", "workload.decode_tokens=8")


@pytest.mark.alike
@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (("system=lru",), "lossy", None),
        (("system=hobbit",), "lossy", "lossy (experts at low precision, experts skipped)"),
        (
            ("system=hobbit", "budget.resident_share=1.0", "precision=int4"),
            "lossy",
            "lossy (every expert at int4 or below)",
        ),
        (("system=lru", "precision=q4_k_m"), "lossy", "lossy (every weight at q4_k_m or below)"),
        (
            ("system=lru", "precision=q4_k_m", "++model.dense_bits=16"),
            "lossy",
            "lossy (every expert at q4_k_m or below)",
        ),
        (("system=lru", "precision=mxfp4", "model.stored=mxfp4"), "lossy", None),
        (
            ("system=hobbit", "model.stored=mxfp4"),
            "part",
            "experts at fp16 take 3.8 times the bytes of the published mxfp4",
        ),
        (
            ("system=lru", "model.stored=fp8"),
            "part",
            "experts at fp16 take 2 times the bytes of the published fp8",
        ),
        (("system=lru", "precision=mxfp4", "model.stored=mxfp4"), "part", None),
        (("system=lru", "precision=int2", "model.stored=mxfp4"), "part", None),
        (("system=lru", "precision=fp32"), "part", None),
        (("system=swapmoe",), "lossy", "lossy (experts in the place of others)"),
        (
            ("system=fate",),
            "lossy",
            "lossy (every expert at int4 or below, experts at low precision)",
        ),
        (("system=floe",), "lossy", "lossy (every expert at floe or below, channels left out)"),
        (("system=lru",), "knows_future", None),
        (("system=oracle",), "knows_future", "knows the future (Belady)"),
        (
            ("system=lru", "loader=hobbit", "predictor=foreseen"),
            "knows_future",
            "knows the future (Foreseen)",
        ),
        (("system=lru", "loader=hobbit", "predictor=next_site"), "knows_future", None),
        (("system=lru",), "reference", None),
        (("system=infinite_link",), "reference", "a reference: copies take no time"),
        (("system=lru",), "transplanted", None),
        (
            ("system=lru", "hardware=a5000_pcie4"),
            "machine",
            "no time of a5000_pcie4 was ever compared with a real machine's",
        ),
        (
            ("system=lru",),
            "machine",
            "rtx4090_pcie4: tokens/s are within 37 % of 3 measured runs on this machine (median 31 %)"
            " with all experts on the device",
        ),
    ],
)
def test_a_run_has_the_label_of_what_it_is(
    words: tuple[str, ...], kind: str, text: str | None
) -> None:
    words = tuple(word.replace("model.stored", "++model.stored") for word in words)
    assert getattr(labels_in(trial((*FEW, *words)).summary), kind) == text


# Contracts: C113
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine", "TRANSPLANTED: gates of tiny_mixtral, sizes of mine, how many layers that has is"),
        ("Tiny-Mixtral", None),
        ("tiny", None),
    ],
)
def test_gates_of_a_model_of_another_name_are_a_transplant_though_all_sizes_are_equal(
    name: str, told: str | None
) -> None:
    run = prepared((*FEW, "system=lru", "model=tiny_mixtral", f"model.name={name}"))
    label = labels_of(run, None).transplanted
    assert label is told or (label or "").startswith(told or "?")


def test_prompts_served_low_are_lossy_though_decoding_is_not() -> None:
    """Fate serves unpopular experts of prompts at INT2.

    No share of a summary shows it, since shares are over decode.
    """
    run = prepared((*FEW, "system=fate"))
    summary = execute(run).summary
    assert summary["quality_proxy"]["low_share"] == 0
    assert (
        summary["labels"]["lossy"]
        == "lossy (every expert at int4 or below, experts at low precision)"
    )


def test_a_predictor_fitted_on_the_runs_own_sequences_knows_the_future() -> None:
    run = replace(prepared((*FEW, "system=lru")), known=3)
    assert labels_of(run, None).knows_future == "knows the future (fitted on 3 of its sequences)"


@pytest.mark.parametrize(
    ("source", "provenance", "label"),
    [
        ("recorded", {}, None),
        ("recorded", {"draft_gates": "S"}, "S"),
        ("synthetic", {"of": "x"}, "SYNTHETIC gates: t"),
        ("synthetic", {"draft_gates": "S"}, "SYNTHETIC gates: t; S"),
    ],
)
def test_gates_that_nobody_recorded_have_a_label(
    source: str, provenance: dict[str, str], label: str | None
) -> None:
    header: Any = SimpleNamespace(name="t", source=source, provenance=provenance)
    assert synthetic_label(header) == label


COMPARED = Validated(18, 3, 1.03, 1.33, 0.1)
NOBODY = "no time of The Machine was ever compared with a real machine's"


@pytest.mark.parametrize(
    ("compared", "changed", "lent", "label"),
    [
        (None, (), None, NOBODY),
        (None, (), "a takes b's", f"{NOBODY}; a takes b's"),
        (COMPARED, (), None, f"m: {COMPARED}"),
        (COMPARED, (), "a takes b's", f"m: {COMPARED}; a takes b's"),
        # What it holds changes no time; what it does, however it is written, changes all of them.
        (
            COMPARED,
            ("hardware.memory_gib=8", "++hardware.reserved_gib=1", "seed=1"),
            None,
            f"m: {COMPARED}",
        ),
        (COMPARED, ("seed=1", "hardware.links.pcie.peak=1"), None, NOBODY),
        (COMPARED, ("++hardware.host.load=1",), None, NOBODY),
        (COMPARED, ("~hardware.measured",), None, NOBODY),
    ],
)
def test_a_machine_tells_its_error_unless_words_make_it_another_machine(
    compared: Validated | None, changed: tuple[str, ...], lent: str | None, label: str
) -> None:
    measured = SimpleNamespace(told=lambda precisions: {("fp16",): lent}[precisions])
    hardware = SimpleNamespace(name="m", title="The Machine", compared=compared, measured=measured)
    geometry = SimpleNamespace(precisions=("fp16",))
    run: Any = SimpleNamespace(
        hardware=hardware, changed=changed, controller=SimpleNamespace(geometry=geometry)
    )
    assert _machine(run) == label
    assert error_of(run) == (None if label.startswith(NOBODY) else compared)
    if lent is None:
        hardware.measured = None
        assert _machine(run) == label


def test_overrides_of_the_surroundings_are_labels_of_a_trial_and_survive_a_column() -> None:
    labels = labels_in(
        trial((*FEW, "system=lru", "cache=lfu", "budget.resident_share=0.4")).summary
    )
    assert labels.changed == FEW
    assert from_row(labels.row()) == labels


def test_what_all_have_is_said_once_and_what_some_have_by_their_names() -> None:
    lossy, both = Labels(synthetic="S", lossy="lossy (a)"), Labels(synthetic="S")
    assert told([("x", lossy), ("y", lossy), ("z", both)]) == ["S", "x, y: lossy (a)"]
    assert told([("x", lossy), ("x", replace(lossy, lossy="lossy (b)")), ("z", both)]) == [
        "S",
        "x: lossy (a)",
        "x: lossy (b)",
    ]
    assert told([("x", lossy)]) == ["S", "lossy (a)"]
    assert caption([("x", lossy), ("z", both)]) == "S; x: lossy (a)"
    assert told([]) == []


def test_that_only_some_runs_of_a_name_are_lossy_or_know_the_future_is_said() -> None:
    """A study's search has runs of one system on sequences of its fit, and on others."""
    fitted, exact = Labels(synthetic="S", knows_future="knows it"), Labels()
    both = [("x", fitted), ("x", exact)]
    assert told(both) == ["S", "x (some runs): knows it"]
    assert told([*reversed(both), ("y", fitted)]) == ["S", "x (some runs), y: knows it"]
    many = [(f"a{n}", one) for n in range(7) for one in (exact, fitted)]
    assert told(many)[1:] == ["7 of 7 (some runs): knows it"]
    assert told([*many, ("b", exact)])[1:] == ["all but b (some runs): knows it"]


def test_of_many_runs_the_others_are_named_or_they_are_counted() -> None:
    """A front of 83 points names nobody 82 times."""
    lossy, exact = Labels(lossy="lossy"), Labels()

    def of(count: int, others: int) -> list[str]:
        named = [(f"a{n}", lossy) for n in range(count)] + [(f"b{n}", exact) for n in range(others)]
        return told(named)

    assert of(6, 1) == ["a0, a1, a2, a3, a4, a5: lossy"]
    assert of(7, 2) == ["all but b0, b1: lossy"]
    assert of(7, 7) == ["7 of 14: lossy"]
    assert of(7, 0) == ["lossy"]


def test_changes_that_all_runs_share_are_said_and_what_is_varied_is_not() -> None:
    at = [
        Labels(changed=("trace.max_sequences=2", f"hardware.memory_gib={gib}")) for gib in (24, 48)
    ]
    assert told([("lru", one) for one in at]) == ["with trace.max_sequences=2"]
    assert told(zip("ab", at, strict=True)) == [
        "with trace.max_sequences=2",
        "a: with hardware.memory_gib=24",
        "b: with hardware.memory_gib=48",
    ]


def test_a_summary_without_labels_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"summary of lru has no labels: an older version wrote it; run it again"
    ):
        labels_in({"system": "lru"})


def test_labels_on_a_figure_stand_below_its_title_inside_its_width() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, _ = plt.subplots(figsize=(4, 3), layout="constrained")
    figure.suptitle("whose\n" + "a title that is wider than the figure, " * 4)
    write_on(
        figure,
        [("lru", Labels(transplanted="TRANSPLANTED: " + "gates of one, sizes of another, " * 5))],
    )
    figure.canvas.draw()
    title = figure._suptitle  # type: ignore[attr-defined]
    assert title.get_text().startswith("whose\na title")
    assert "\nTRANSPLANTED" in title.get_text()
    box = title.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.width > 0.7 * figure.bbox.width  # and fill it
    plt.close(figure)


def test_a_line_of_a_figure_is_no_wider_than_it_may_be() -> None:
    """The words of a run are wider than its sentences: 0.57 of the font's size a letter."""
    words = " ".join(f"model.expert_intermediate={number}" for number in range(12))
    for points in (200.0, 648.0):
        lines = fitted([words, "$5"], points, 7.0)
        assert max(TextPath((0, 0), line, 7.0).get_extents().width for line in lines) <= points
        assert " ".join(line.strip() for line in lines) == rf"{words} \$5"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("workload.draft_tokens=2",), "knows the future (every draft is right)"),
        (("workload.draft_tokens=2", "workload.draft_accepted=0.5"), None),
        (("workload=mtp_4",), None),
        ((), None),
    ],
)
def test_drafts_that_are_all_right_know_the_future(
    words: tuple[str, ...], told: str | None
) -> None:
    run = prepared((*FEW, "system=lru", *words))
    assert labels_of(run, None).knows_future == told


def test_requests_for_which_the_trace_has_no_sequence_are_told() -> None:
    line = "{timestamp: 0, input_length: 12, output_length: 4, hash_ids: [1, 2, 3]}"
    words = ["workload=continuous_4", "workload.block_tokens=4", "trace.max_sequences=2"]

    def part(count: int) -> str:
        run = prepared([*words, f"workload.requests=[{','.join([line] * count)}]"])
        return str(labels_of(run, None).part)

    assert "requests" not in part(2)
    assert "the first 2 of 3 requests: the run has no more sequences" in part(3)
