"""Runs one piece in a process of its own.

    python -m real.suite.piece NAME FOLDER DEVICE SIZE SECONDS

Exit status: 0; 74 where something was left out for time; 75 where another process is to go on; 1,
with a traceback, where the piece failed.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from real.calibration.deadline import Deadline
from real.suite.context import AGAIN, PART, Context, GoOnAfresh, LeftOut
from real.suite.pieces import piece_of


def main(arguments: Sequence[str]) -> int:
    name, folder, device, size, seconds = arguments
    context = Context(device, size, Path(folder), Deadline(float(seconds)))
    try:
        piece_of(name).load()(context)
    except GoOnAfresh:
        return AGAIN
    except LeftOut as told:
        print(told, file=sys.stderr)
        return PART
    except Exception as error:
        traceback.print_exc()
        # The suite tells only the last line.
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
