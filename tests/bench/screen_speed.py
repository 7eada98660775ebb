"""How fast screening is, in token-layers x machines a second of processor time; run by hand."""

from __future__ import annotations

import json
import time

from sim.process.shared import Shared
from sim.screen import read_words
from sim.screening.moves import first_pass
from sim.screening.times import second_pass
from sim.setup.build import build

MACHINES = 64


def main() -> None:
    speeds = ",".join(f"{4 + i / 2:g}" for i in range(MACHINES))
    cells = read_words(("system=lru", f"hardware.links.pcie.peak_gb_per_s={speeds}"))
    shared = Shared()
    runs = [build(cell.config, cell.system, shared=shared) for cell in cells]
    token_layers = sum(step.rows * len(step.sites) for step in runs[0].workload.steps)
    began = time.process_time()
    moves = first_pass(runs[0].controller, runs[0].workload)
    first_s = time.process_time() - began
    second_s = []
    for _ in range(3):
        durations = [build(cell.config, cell.system, shared=shared).durations for cell in cells]
        began = time.process_time()
        second_pass(moves, durations)
        second_s.append(time.process_time() - began)
    print(
        json.dumps(
            {
                "machines": MACHINES,
                "token_layers": token_layers,
                "gates": len(moves.kind),
                "kinds": len(moves.kinds),
                "first_pass_token_layers_per_s": round(token_layers / first_s),
                "second_pass_token_layers_x_machines_per_s": round(
                    token_layers * MACHINES / min(second_s)
                ),
                "second_pass_gates_x_machines_per_s": round(
                    len(moves.kind) * MACHINES / min(second_s)
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
