"""Measures how far the simulator is from a run on a device.

It runs cases, learns constants from other systems' runs, and gives the verdicts.
"""
