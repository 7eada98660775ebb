"""What lossy choices cost in quality: experts at other precisions, skipped or exchanged, in a
real forward pass.
"""
