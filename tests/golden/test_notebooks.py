"""The notebooks run as they stand and print what they are kept with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.build import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

QUICK = ("01_first_answer", "02_miss_penalties")
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def printed(notebook: Any) -> list[str]:
    """All that the code cells print, figures left out: their bytes depend on fonts."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [
        output.get("text") or output["data"]["text/plain"]
        for output in outputs
        if output.output_type != "stream" or output.name == "stdout"
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in NOTEBOOKS]
)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_prints_again_what_it_is_kept_with(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    kept = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    fresh = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(fresh, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert printed(fresh) == printed(kept)
    assert printed(kept)
