"""Matters of the whole process: ending it cleanly, orphaned workers, data that its runs share."""
