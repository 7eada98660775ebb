"""Devices that need no GPU: the CPU device and the null device."""
