"""Traces: what a model's routers saw and chose. Reading, checking, writing and synthesising
them.
"""
