"""The decision core: it decides what to move and to evict, and never acts. No clock, no tensor, no
I/O.

The names exported here are public: configurations use them."""

from sim.core.loader import Loader

__all__ = ["Loader"]
