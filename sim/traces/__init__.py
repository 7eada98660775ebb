"""Traces, the records of what a model's routers saw and chose: read, check, write, synthesise."""
