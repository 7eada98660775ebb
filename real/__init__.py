"""Runs the simulator's own policy objects on a device. Never imports simpy."""
