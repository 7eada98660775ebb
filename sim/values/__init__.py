"""What every layer exchanges: shared types, units, checked fields, recorded columns and the
project's places.
"""
