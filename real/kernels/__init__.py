"""Operators of offloaded experts, one a file: legend, torch reference, Triton kernel, launcher.

Triton is optional.
"""
