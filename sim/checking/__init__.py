"""Checks whether a foreign engine's cache works as it is said to, by replays of its residency log.

docs/check.md explains what is checked and what a log cannot tell.
"""
