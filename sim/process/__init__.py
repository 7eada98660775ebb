"""What concerns the whole process: ending it cleanly, orphaned workers, and data shared by its
runs.
"""
