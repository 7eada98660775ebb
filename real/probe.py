"""Measures what this machine's link to its GPU, its host calls and its kernels take.

    python -m real.probe [output=FILE]

It writes facts for the machine model as JSON:

- copies by size, from pinned and from pageable memory, to the device and back, alone and in a row;
- what a launch, an event, a wait and the read-out of a routing cost the host;
- the cost of pinning;
- how far the device's clock strays from the host's;
- FloE's gather by columns: by threads, and by a kernel that reads host memory;
- the kernels beside a measured copy.

Nothing is fitted here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from real.cuda.probing import links_and_host
from real.cuda.runtime import CudaRuntime, DeviceError, Runtime
from sim.verbs.table import verb_of
from sim.verbs.words import read


def probe(runtime: Runtime) -> dict[str, Any]:
    """Measure all facts. Takes about two minutes."""
    from real.cuda.bench import Bench, Measuring

    facts, kernels = links_and_host(runtime), Measuring(runtime, Bench())
    return {
        **facts,
        "device_copy_bytes_per_s": kernels.peak,
        "kernels": [
            {**asdict(timed), "bytes_per_s": timed.bytes_per_s} for timed in kernels.measure()
        ],
    }


def main(arguments: Sequence[str]) -> int:
    try:
        words = read(verb_of("real probe"), arguments).own
        output = Path(words.get("output", "facts.json"))
        if not output.parent.is_dir():
            raise DeviceError(
                f"{output.parent} is no folder: create it first, or choose another output=FILE"
            )
        facts = probe(CudaRuntime())
        output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    except (DeviceError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    best = max(row["bytes_per_s"] for row in facts["copies"] if row["memory"] == "pinned")
    print(f"{facts['gpu']}: {best / 1e9:.1f} GB/s from pinned memory; facts: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
