"""What lossy choices cost in quality, in a real forward pass.

A choice is lossy where experts are served at other precisions, skipped, or exchanged.
"""
