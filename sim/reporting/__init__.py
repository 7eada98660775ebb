"""Reports of runs: their figures, and the runs read back for them."""
