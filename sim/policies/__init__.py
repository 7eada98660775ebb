"""Policies are pure deciders: they see no clock, tensor, config object, global randomness or simulator.

Standard library and numpy only. Their contracts are in :mod:`sim.policies.base`.
"""
