"""A run's summary computed a second time, from the run's own files: ``python -m sim.audit RUN``.

Nothing here imports the rest of ``sim``. So a mistake in a metric, in a size or in a sum shows as a
difference, unless it was made twice. What a run's files cannot give is listed with the reason.
"""
