"""Importing FLAME-MoE-Traces: layers' files become sites, rows prompts of a stated length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capture.importers.formats import parse
from capture.importers.source import ImportFailure
from helpers.import_fixtures import FACTS, failure, imported, lacks, make_ids, make_weights, refusal
from sim.traces.trace import PREFILL

LAYERS, TOP_K, ROWS = (2, 3, 10), 2, 7
IDS, WEIGHTS = make_ids(ROWS, len(LAYERS), TOP_K), make_weights(ROWS, len(LAYERS), TOP_K)
TOKENS = np.arange(40, 40 + ROWS)


def layer_frame(site: int) -> pl.DataFrame:
    """A layer's file as the data set's card says: lists of float16, descending, and of int16."""
    return pl.DataFrame(
        {
            "scores": pl.Series(WEIGHTS[:, site].tolist(), dtype=pl.List(pl.Float16)),
            "indices": pl.Series(IDS[:, site].tolist(), dtype=pl.List(pl.Int16)),
        }
    )


def write(
    folder: Path, model: str = "flame-moe-tiny", site: int = 0, frame: pl.DataFrame | None = None
) -> Path:
    """A folder with the layout of the data set; ``frame`` replaces the file of ``site``."""
    capture = folder / model / "actives" / "iter_5473"
    samples = folder / model / "samples"
    capture.mkdir(parents=True)
    samples.mkdir()
    for index, layer in enumerate(LAYERS):
        chosen = frame if frame is not None and index == site else layer_frame(index)
        chosen.write_parquet(capture / f"layer_{layer:02d}.parquet")
    for number, part in enumerate((TOKENS[:4], TOKENS[4:])):
        pl.DataFrame({"token_id": pl.Series(part, dtype=pl.Int32)}).write_parquet(
            samples / f"{number:03d}.parquet"
        )
    return capture


def test_a_capture_becomes_prompts_of_the_stated_length(tmp_path: Path) -> None:
    trace = imported("flame", write(tmp_path), tmp_path / "trace", sequence_length="3")
    assert np.array_equal(trace.ids, IDS)
    assert np.allclose(trace.weights, WEIGHTS, rtol=0, atol=1e-6)
    assert trace.sequence.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert trace.step.tolist() == trace.sequence.tolist()
    assert trace.position.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert trace.token.tolist() == TOKENS.tolist()
    assert set(trace.phase.tolist()) == {PREFILL}
    assert [site.layer for site in trace.header.sites] == list(LAYERS)
    assert lacks(trace) == {"decode", "scores"}
    assert trace.header.provenance["capture"] == "flame-moe-tiny/iter_5473"
    assert trace.header.provenance["sequences"] == "not recorded: sequence_length=3"


def test_the_first_tokens_of_a_capture_can_be_taken(tmp_path: Path) -> None:
    trace = imported("flame", write(tmp_path), tmp_path / "trace", sequence_length="3", tokens="5")
    assert np.array_equal(trace.ids, IDS[:5])
    assert trace.token.tolist() == TOKENS[:5].tolist()
    assert trace.header.provenance["rows_of_capture"] == ROWS


def test_lists_of_a_fixed_length_and_single_precision_are_read_too(tmp_path: Path) -> None:
    frame = layer_frame(1).select(
        pl.col("scores").cast(pl.Array(pl.Float32, TOP_K)),
        pl.col("indices").cast(pl.Array(pl.Int32, TOP_K)),
    )
    path = write(tmp_path, site=1, frame=frame)
    assert np.array_equal(imported("flame", path, tmp_path / "trace", sequence_length="3").ids, IDS)


def test_a_capture_without_samples_lacks_the_ids_of_tokens(tmp_path: Path) -> None:
    path = write(tmp_path)
    (path.parents[1] / "samples").rename(tmp_path / "elsewhere")
    trace = imported("flame", path, tmp_path / "trace", sequence_length="3")
    assert "tokens" in lacks(trace)
    assert set(trace.token.tolist()) == {-1}
    elsewhere = imported(
        "flame", path, tmp_path / "other", sequence_length="3", samples=str(tmp_path / "elsewhere")
    )
    assert elsewhere.token.tolist() == TOKENS.tolist()
    assert "is no directory" in failure(
        "flame", path, sequence_length="3", samples=str(tmp_path / "absent")
    )


def test_how_long_a_sequence_is_has_to_be_given(tmp_path: Path) -> None:
    facts = [f"{key}={text}" for key, text in FACTS.items()]
    with pytest.raises(ImportFailure, match=r"also needs sequence_length=\.\.\."):
        parse(["format=flame", f"path={tmp_path}", "output_dir=o", *facts])
    for key in ("sequence_length", "tokens"):
        wrong = {"sequence_length": "3", key: "0"}
        assert f"{key}=0 must be a whole number" in failure("flame", tmp_path, **wrong)


def changed(name: str, row: int, values: list[float] | None) -> pl.DataFrame:
    frame = layer_frame(1)
    rows = frame[name].to_list()
    rows[row] = values
    return frame.with_columns(pl.Series(name, rows, dtype=frame[name].dtype))


@pytest.mark.parametrize(
    ("frame", "place", "rule"),
    [
        (layer_frame(1).drop("scores"), "scores", "must be a column (found ['indices'])"),
        (
            layer_frame(1).with_columns(pl.col("indices").cast(pl.List(pl.String))),
            "indices",
            "must be lists of Int16",
        ),
        (
            layer_frame(1).with_columns(pl.lit(1).cast(pl.Int16).alias("indices")),
            "indices",
            "must be lists of Int16",
        ),
        (
            layer_frame(1).head(6),
            "rows and ranks",
            "must be 7 rows and 2 ranks, as in layer_02.parquet",
        ),
        (layer_frame(1).head(0), "rows", "must be 1 or more"),
        (
            layer_frame(1).select(pl.col("scores").list.head(1), pl.col("indices").list.head(1)),
            "rows and ranks",
            "must be 7 rows and 2 ranks",
        ),
        (changed("indices", 3, [1]), "indices, values in row [3]", "must be 2, as in row 0"),
        (changed("indices", 3, None), "indices, values in row [3]", "must be 2, as in row 0"),
        (changed("indices", 3, [1, None]), "indices", "must hold no null"),
        (changed("indices", 3, [1, 8]), "indices[3, 1]", "must lie in 0..7"),
        (changed("indices", 3, [1, -1]), "indices[3, 1]", "must lie in 0..7"),
        (changed("indices", 3, [1, 1]), "indices[3, 0]", "must not repeat in a row"),
        (changed("scores", 3, [0.25, 0.5]), "scores[3, 0]", "must not rise from rank to rank"),
        (changed("scores", 3, [1.5, 0.5]), "scores[3, 0]", "must lie in 0..1"),
        (changed("scores", 3, [float("nan"), 0.5]), "scores[3, 0]", "must lie in 0..1"),
    ],
)
def test_a_wrong_layer_is_refused_by_column_and_rule(
    tmp_path: Path, frame: pl.DataFrame, place: str, rule: str
) -> None:
    error = refusal("flame", write(tmp_path, site=1, frame=frame), sequence_length="3")
    assert (error.file, error.field) == ("layer_03.parquet", place)
    assert rule in str(error)


def test_fewer_ids_of_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    (path.parents[1] / "samples" / "001.parquet").unlink()
    error = refusal("flame", path, sequence_length="3")
    assert (error.file, error.field) == ("000.parquet", "rows")
    assert "must be 7 or more in all samples" in str(error)


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = (path / "layer_03.parquet").read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-1]):
        (path / "layer_03.parquet").write_bytes(content)
        error = refusal("flame", path, sequence_length="3")
        assert (error.file, error.field) == ("layer_03.parquet", "content")


def test_two_files_of_a_layer_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    layer_frame(0).write_parquet(path / "layer_002.parquet")
    assert "must not be there twice" in str(refusal("flame", path, sequence_length="3"))


def test_a_folder_without_layers_is_refused(tmp_path: Path) -> None:
    assert "has no layer_<nn>.parquet" in failure("flame", tmp_path, sequence_length="3")
    assert "cannot be read" in failure("flame", tmp_path / "absent", sequence_length="3")


def test_more_rows_than_a_trace_is_held_in_memory_with_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.importers.parts.LARGEST_CELLS", 20)
    error = refusal("flame", write(tmp_path), sequence_length="3")
    assert "take fewer, tokens=N" in str(error)


def test_the_published_models_facts_are_those_of_the_card(tmp_path: Path) -> None:
    from capture.importers.flame import PUBLISHED

    assert PUBLISHED["flame-moe-290m", 8, 6]["experts"] == "64"
    assert "experts=..." in str(_missing(write(tmp_path)))


def _missing(path: Path) -> ImportFailure:
    from capture.importers import flame
    from capture.importers.parts import make_request
    from capture.importers.source import untracked

    with pytest.raises(ImportFailure) as refused:
        flame.read(make_request({"path": str(path), "sequence_length": "3"}), untracked)
    return refused.value


@pytest.mark.parametrize("choice", [None, []], ids=["null", "empty"])
def test_a_first_row_without_experts_is_refused(tmp_path: Path, choice: object) -> None:
    rows = [choice] * len(IDS)
    frame = pl.DataFrame(
        {
            "scores": pl.Series(rows, dtype=pl.List(pl.Float16)),
            "indices": pl.Series(rows, dtype=pl.List(pl.Int16)),
        }
    )
    error = refusal("flame", write(tmp_path, frame=frame), sequence_length="3")
    assert error.field == "indices, values in row [0]"
