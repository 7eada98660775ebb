"""Synthetic traces of models whose weights are not at hand, from published statistics.

What is fitted is kept in ``capture/presets/fitted``; ``python -m capture.calibrate`` makes the fits.
"""
