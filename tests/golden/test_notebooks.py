"""The notebooks run as they are, and print what they were stored with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.values.places import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

QUICK = ("01_first_answer",)
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def printed(notebook: Any) -> list[str]:
    """What each code cell prints, without figures, whose bytes depend on fonts.

    Consecutive output of a cell is one text: how a kernel cuts it into pieces depends on time.
    """
    found = []
    for cell in notebook.cells:
        is_running_on = False
        for output in cell.get("outputs", []):
            is_text = output.output_type == "stream"
            if is_text and output.name != "stdout":
                continue
            text = output.text if is_text else output["data"]["text/plain"]
            if is_text and is_running_on:
                found[-1] += text
            else:
                found.append(text)
            is_running_on = is_text
    return found


def test_a_text_sent_in_pieces_is_the_text_sent_whole() -> None:
    """Pieces are joined within a cell only, and a value between two texts separates them."""
    v4 = nbformat.v4

    def stream(text: str, name: str = "stdout") -> Any:
        return v4.new_output("stream", name=name, text=text)

    value = v4.new_output("display_data", {"text/plain": "<Figure>"})
    pieces = [stream("a\n"), stream("warning", "stderr"), stream("b\n"), value, stream("c")]
    cells = [v4.new_code_cell("1", outputs=pieces), v4.new_code_cell("2", outputs=[stream("d")])]
    assert printed(v4.new_notebook(cells=cells)) == ["a\nb\n", "<Figure>", "c", "d"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in NOTEBOOKS],
)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_prints_again_what_it_is_kept_with(
    name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    kept = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    fresh = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        fresh, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert printed(fresh) == printed(kept)
    assert printed(kept)
