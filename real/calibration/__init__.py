"""Measures a machine from inside the engine: the parts of `python -m real.calibrate`."""
