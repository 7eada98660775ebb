"""Live runs: a running model's own gates decide, and a device computes its experts."""
