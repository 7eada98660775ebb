"""The simulator: a SimPy driver around the controller, its links and its compute stream."""
