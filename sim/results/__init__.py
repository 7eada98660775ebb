"""What a run leaves: tables, the summary's metrics, intervals, labels, and the files they are
written to.
"""
