"""Everything that a machine can show in some minutes, piece by piece: ``python -m real.suite``."""
