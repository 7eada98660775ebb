"""Recomputes the papers' claims with the simulator: ``python -m sim.reproduce``.

docs/papers.md explains roles, rules and verdicts.
"""
