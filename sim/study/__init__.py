"""Many configurations in one job: a grid, a list or a search, whose results are one parquet
dataset.
"""
