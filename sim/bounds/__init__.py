"""Proven lower bounds on a run's time and on the loads of any cache."""
