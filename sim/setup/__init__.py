"""From a composed configuration to a run: choices, checks, construction and execution.

The names exported here are public: configurations use them.
"""

from sim.setup.choices import TraceChoice, WorkloadChoice

__all__ = ["TraceChoice", "WorkloadChoice"]
