"""From a composed configuration to a run on a device, and its execution."""
