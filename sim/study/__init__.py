"""Studies: many configurations in one job, as a grid, a list or a search. The results are one
parquet dataset.
"""
