"""Runs on a GPU. Every call that needs one is in ``runtime``; all else here is checked without."""
