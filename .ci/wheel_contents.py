"""``wheel_contents.py WHEEL``: does it hold what git holds of the packages, and nothing else?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

MOST_BYTES = 40_000_000
NOT_CARRIED = "real/results/"
"""What machines showed: documents. Code reads one file of it."""
CARRIED = "real/results/pairs.csv"


def expected() -> set[str]:
    """The files that git tracks, as a wheel names them."""
    told = subprocess.run(
        ["git", "ls-files", "-z", "sim", "capture", "real", "conf"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name for name in told.stdout.split("\0") if name and Path(name).is_file()]
    return {
        f"sim/{name}" if name.startswith("conf/") else name
        for name in names
        if name == CARRIED or not name.startswith(NOT_CARRIED)
    }


def main(wheel: Path) -> int:
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    faults = [f"lacks {name}" for name in sorted(expected() - held)]
    faults += [f"has {name}, which git does not" for name in sorted(held - expected())]
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        faults.append(f"takes {size} bytes, more than {MOST_BYTES}")
    for fault in faults:
        print(f"{wheel.name} {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
