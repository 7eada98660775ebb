"""How far the simulator is from a run on a device: cases that are run, constants from other
runs, and the verdicts.
"""
