"""A machine measured from inside the engine: what `python -m real.calibrate` is made of."""
