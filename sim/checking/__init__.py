"""Does a foreign engine's cache work as it is said to? Replays of its residency log."""
