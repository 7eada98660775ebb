"""Ends worker processes whose parent is gone."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def leave_with_parent() -> None:
    """End this process once its parent is gone; a parent that was killed cannot tell its workers.

    A thread watches the parent.
    """
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
