"""The driver of real runs: the main loop around the controller, and its interface to devices."""
