"""A what-if whose parent process is killed continues from what it had done.

It leaves no process behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WORDS = (
    "bits",
    "system=lru",
    "trace.max_sequences=2",
    "workload.prompt_tokens=1",
    "workload.decode_tokens=8",
    "values=2,4,8,16",
)
MARK = 12345.0


def children_of(process: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def is_running(process: int) -> bool:
    """Whether a process runs; dead ones that nobody has waited for do not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happens: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until, "has not happened in time"
        time.sleep(0.02)


@pytest.mark.thorough
@pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="asks /proc for the processes of an asking"
)
def test_a_killed_asking_goes_on_where_it_was_and_leaves_nobody_behind(tmp_path: Path) -> None:
    """Results kept before the kill are marked, and the answer has the mark.

    So they were not simulated again.
    """
    place = tmp_path / "answer"
    asking = [sys.executable, "-m", "sim.whatif", *WORDS, f"output_dir={place}"]
    with subprocess.Popen(asking, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: any((place / "trials").glob("*.json")) or process.poll() is not None)
        workers = children_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it was through before it could be killed"
    assert len(workers) >= 2
    wait_until(lambda: not any(map(is_running, workers)))
    assert [path.name for path in place.iterdir()] == ["trials"]
    kept = min((place / "trials").glob("*.json"))
    content = json.loads(kept.read_text())
    content["summary"]["decode_tokens_per_s"] = MARK
    kept.write_text(json.dumps(content))
    done = subprocess.run(asking, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((place / "answer.json").read_text())["rows"]
    assert len(rows) == 4
    assert [row["tokens_per_s"] for row in rows].count(MARK) == 1
    assert not (place / "trials").exists()
