"""The papers' claims beside what the simulator says (``python -m sim.reproduce``;
docs/papers.md).
"""
