"""From a composed configuration to a run: choices, checks, construction and execution.

The names exported here are public: configurations use them.
"""

from typing import Any

__all__ = ["TraceChoice", "WorkloadChoice"]


def __getattr__(name: str) -> Any:
    # Late: commands read their words with this package before numpy is known to be there.
    if name in __all__:
        from sim.setup import choices

        return getattr(choices, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
