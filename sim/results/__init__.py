"""The results of a run: tables, the summary's metrics, intervals, labels, and their files."""
