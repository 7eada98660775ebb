"""Computes a run's summary a second time, from the run's own files: ``python -m sim.audit RUN``.

Nothing here imports the rest of ``sim``. So a mistake in a metric, a size or a sum shows as a
difference, unless it was made twice. Keys that the files cannot give are listed with the reason.
"""
