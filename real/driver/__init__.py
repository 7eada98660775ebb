"""The driver of real runs: a main loop around the controller, and what it needs of any device."""
