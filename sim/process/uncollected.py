"""Runs without Python's garbage collector, which would go through all that a run keeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LONG_RUN = 10_000
"""With more new objects than this a pass of the garbage collector takes some milliseconds (25 for sixty
thousand), and to ask whether any are frozen takes no longer.
"""


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: a run makes no reference cycles, and its growing columns would
    be scanned again and again. On a device a pass is a pause of the host, 0.2 s with torch loaded.

    The collector's first pass afterwards would go through all that a long run has made. So that
    counts as old at once, unless somebody has frozen objects, which would be thawed with it.
    """
    was_on, before = gc.isenabled(), gc.get_count()[0]
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            made = gc.get_count()[0] - before
            is_long = made > LONG_RUN and not gc.get_freeze_count()
            if is_long:
                gc.freeze()
            gc.enable()
            if is_long:
                gc.unfreeze()
