"""Fixtures of the tests of `real`."""

from helpers.cpu_runs import no_thread_is_left, prepare, stores

__all__ = ["no_thread_is_left", "prepare", "stores"]
