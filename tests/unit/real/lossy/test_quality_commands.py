"""The commands of quality: fits that the simulator takes, words that are refused, the harness."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoTokenizer

from real.closed_loop import main as closed_main
from real.lossy.harness import AsWanted
from real.quality import main as quality_main
from real.quality_fit import main as fit_main
from sim.fitting.artefact import Artefact, read_artefact, write_artefact
from sim.fitting.fits import shape_of
from sim.pareto import main as pareto_main
from sim.policies.precisions import ScoreThreshold
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.traces.trace import Trace, trace_sha256


def _artefact(of: Trace, folder: Path, **changes: Any) -> Path:
    low = np.zeros((16, 8), np.uint8)
    low[3, 5] = low[7] = 1
    given: dict[str, Any] = {
        "kind": "expert_widths",
        "parameters": {"high": "int4", "low": "int2", "tolerated": "0.05"},
        "trace": {"name": of.header.name, "sha256": trace_sha256(of.header)},
        "shape": shape_of(of.header),
        "sequences": (0, 1),
        "arrays": {"low": low},
        "results": {"loss": 0.04},
    }
    return write_artefact(folder, "fit", Artefact(**{**given, **changes}))


def _build(trace: Trace, *words: str) -> Any:
    cfg, name = configure("system=edgemoe", "trace.max_sequences=1", *words)
    return build(cfg, name, trace)


def test_the_simulator_serves_the_widths_of_a_fit(bundled_trace: Trace, tmp_path: Path) -> None:
    place = _artefact(bundled_trace, tmp_path)
    run = _build(bundled_trace, f"precision.artefact={place}")
    lookups = execute(run).frames.lookups
    low = ((pl.col("site") == 7) | ((pl.col("site") == 3) & (pl.col("expert") == 5))).alias("low")
    wanted = lookups.select(low, pl.col("wanted") == "int2").to_numpy()
    assert (wanted[:, 0] == wanted[:, 1]).all()
    assert wanted[:, 0].any()


# Contracts: C130
@pytest.mark.parametrize(
    ("changes", "words", "told"),
    [
        ({"kind": "low_share"}, (), "with kind low_share"),
        ({"trace": {"name": "tiny_mixtral", "sha256": "0" * 64}}, (), "with trace 000"),
        (
            {"sequences": (32,)},
            (),
            "the precision was fitted on 1 of the sequences of this run",
        ),
        (
            {"parameters": {"high": "int8", "low": "int4"}},
            (),
            "set precision.high=int8 precision.low=int4",
        ),
        ({"arrays": {"low": np.full((16, 8), 3)}}, (), "array low of the fit must be 0 or 1"),
        ({}, ("precision.table=[[int4]]",), "both say which experts are low"),
    ],
)
def test_a_fit_of_something_else_is_refused(
    changes: dict[str, Any], words: tuple[str, ...], told: str, bundled_trace: Trace, tmp_path: Path
) -> None:
    place = _artefact(bundled_trace, tmp_path, **changes)
    with pytest.raises(ValueError, match=told):
        _build(bundled_trace, f"precision.artefact={place}", *words)


def test_a_fitted_share_is_what_a_prompts_fewest_get(bundled_trace: Trace, tmp_path: Path) -> None:
    place = _artefact(
        bundled_trace, tmp_path, kind="low_share", arrays={"low_share": np.array([0.5])}
    )
    cfg, name = configure("system=fate", "trace.max_sequences=1", f"precision.artefact={place}")
    assert build(cfg, name, bundled_trace).controller.selector.low_share == 0.5  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_fates_share_is_fitted_on_fit_sequences_and_within_the_loss(
    tmp_path: Path, capsys: Any
) -> None:
    assert fit_main(["fit=low_share", "tolerated=0.004", "texts=1", f"output_dir={tmp_path}"]) == 0
    artefact = read_artefact(tmp_path / "low_share-0.004.json")
    assert artefact.sequences == (0,)
    assert artefact.results["loss"] <= 0.004
    assert 0 <= float(artefact.arrays["low_share"][0]) < 1
    assert "precision=low_for_few precision.artefact=" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fit=widths", "tolerated=0"], "must be above 0"),
        (["fit=widths", "system=lru"], "'system=lru' is no word of a fit"),
        (["fit=widths", "trace.max_sequences=1"], "as texts= says"),
        (["fit=sparsity", "trace=tiny_switch"], "channels are left out of experts"),
        (["fit=widths", "trace=none"], "none"),
    ],
)
def test_wrong_words_for_a_fit_are_refused(
    words: list[str], told: str, tmp_path: Path, capsys: Any
) -> None:
    assert fit_main([*words, f"output_dir={tmp_path / 'fits'}"]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "fits").exists()


@pytest.mark.alike
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["quantiser=rows"], "rows is none of groups, channels"),
        (["system=hobbit", "precision=mxfp4"], "no quantiser makes precision mxfp4"),
        (["prompts=heldout"], "weights=DIR"),
        (["prompts=heldout", "trace=tiny_mixtral"], "give one of them"),
        (["system=lru", "workload=static_4"], "choose workload=sequential"),
        (["system=lru", "weights=capture/assets/tiny_qwen2moe"], "was captured from"),
        (["limit=3"], "limit=3 is for the harness: say which tasks=a,b"),
        (["system=lru", "quantiser=channels"], "quantiser=channels changes nothing: it is of int2"),
        (
            ["precision=hqq4_g64", "system=lru", "group=32"],
            "group=32 changes nothing: it is of int",
        ),
        (["system=io_qexp", "quantiser=channels", "group=32"], "which has one scale for each chan"),
    ],
)
def test_wrong_words_for_quality_are_refused_and_leave_nothing(
    words: list[str], told: str, tmp_path: Path, capsys: Any
) -> None:
    place = tmp_path / "out"
    assert quality_main([*words, f"output_dir={place}"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert not place.exists()


def test_the_harness_is_refused_by_name_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert quality_main(["system=hobbit", "tasks=arc_easy", f"output_dir={tmp_path / 'out'}"]) == 2
    assert "needs lm-evaluation-harness, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


TASK = """task: read_on
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""
TEXTS = (
    "The river was low that summer, and the boats lay on the sand.",
    "She asked the old man what he had seen.",
)


@pytest.mark.thorough
def test_the_harness_scores_a_task_of_ones_own_as_the_model_itself_does(
    tmp_path: Path, capsys: Any, mixtral: Any
) -> None:
    """At full precision, bits a byte are those of a plain pass of the model over the texts."""
    pytest.importorskip("lm_eval")
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    )
    (tmp_path / "read_on.yaml").write_text(TASK.replace("FILE", str(tmp_path / "texts.jsonl")))
    words = ["tasks=read_on", f"task_dir={tmp_path}", f"output_dir={tmp_path / 'out'}"]
    assert quality_main(["system=hobbit", "precision=hobbit_int8", *words]) == 0
    scores = {
        name: found["read_on"]["bits_per_byte,none"]
        for name, found in json.loads(capsys.readouterr().out).items()
    }
    nats = 0.0
    tokenizer = AutoTokenizer.from_pretrained("capture/assets/tiny_mixtral")
    for text in TEXTS:
        tokens = tokenizer(text)["input_ids"]
        with torch.no_grad():
            logits = mixtral(torch.tensor([[tokenizer.eos_token_id, *tokens]])).logits[0, :-1]
        nats += float(
            torch.nn.functional.cross_entropy(logits.float(), torch.tensor(tokens), reduction="sum")
        )
    expected = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert scores["full"] == pytest.approx(expected, rel=1e-5)
    assert scores["lossy"] != scores["full"]
    assert quality_main(["system=hobbit", "tasks=read_of", *words[1:]]) == 2
    assert "tasks=read_of: the harness has no such task" in capsys.readouterr().err
    assert quality_main(["system=floe", *words]) == 2
    assert "leaves out channels of decoded tokens only" in capsys.readouterr().err


def test_without_a_cache_every_row_gets_what_its_selector_wants() -> None:
    ids = torch.tensor([[4, 2], [1, 3], [0, 8]])
    weights = torch.tensor([[0.3, 0.7], [0.95, 0.05], [0.5, 0.5]])
    served = AsWanted(ScoreThreshold("fp16", "int4", 0.6, 0.9), 8)(
        0, torch.zeros(3, 4), ids, weights
    )
    assert served.codes.tolist() == [[1, 0], [0, -1], [0, -1]]


@pytest.mark.thorough
def test_quality_and_loops_go_from_command_to_front(tmp_path: Path, capsys: Any) -> None:
    for system in ("lru", "hobbit"):
        words = [
            f"system={system}",
            "trace.max_sequences=2",
            "loop=closed",
            f"output_dir={tmp_path / system}",
        ]
        assert quality_main(words) == 0
    found = {
        name: json.loads((tmp_path / name / "quality.json").read_text())["rows"][0]
        for name in ("lru", "hobbit")
    }
    assert found["lru"]["divergence"] == 0
    assert found["hobbit"]["divergence"] > 0
    assert pl.read_parquet(tmp_path / "hobbit" / "quality.parquet").height == 2
    assert "changes nothing: KL is exactly 0" in capsys.readouterr().out
    assert pareto_main([str(tmp_path / "lru"), str(tmp_path / "hobbit")]) == 0
    assert "On the front: lru" in capsys.readouterr().out
    words = ["systems=lru,hobbit", "trace.max_sequences=2", f"output_dir={tmp_path / 'loops'}"]
    assert closed_main(words) == 0
    assert "Lossless (lru): exactly zero everywhere." in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["tiny_qwen2moe", "tiny_switch"])
@pytest.mark.parametrize("system", ["lru", "sida", "swapmoe"])
def test_other_architectures_close_the_loop(model: str, system: str, tmp_path: Path) -> None:
    words = [
        f"systems={system}",
        f"model={model}",
        f"trace={model}",
        "trace.max_sequences=1",
        "mode=teacher-forced",
        "budget.resident_share=0.5",
        f"output_dir={tmp_path / 'out'}",
    ]
    assert closed_main(words) == 0
    row = json.loads((tmp_path / "out" / "closed_loop.json").read_text())["rows"][0]
    assert (row["divergence"] == 0) == (system == "lru")
