"""The decision core: decides what to move and what to evict, and never acts.

It has no clock, no tensor and no I/O, so that a simulated and a real driver can call it alike.

The names exported here are public: configurations use them.
"""

from sim.core.loader import Loader

__all__ = ["Loader"]
