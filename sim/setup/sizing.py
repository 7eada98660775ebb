"""The bytes of a run's experts, whatever its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.machine.budget import Budget, held_bits, make_geometry
from sim.machine.devices import device_of
from sim.machine.model import Model
from sim.machine.recorded_bytes import RecordedBytes, recorded_bytes
from sim.setup.parts import Parts
from sim.setup.traces import trace_directory
from sim.traces.header import Header
from sim.values.types import Geometry


@dataclass(frozen=True)
class Sizing:
    """What variants there are, and what each of them takes.

    Fields are arguments of `make_geometry`. ``recorded``: the sizes that the trace tells, if any.
    """

    model: Model
    precisions: tuple[str, ...]
    missing: frozenset[tuple[int, int, int]]
    stored_bytes: Sequence[int]
    held_bits: float
    recorded: RecordedBytes | None
    device_of: tuple[int, ...]

    def geometry(self, budget: Budget) -> Geometry:
        """The experts of a run with this budget."""
        return make_geometry(
            self.model,
            self.precisions,
            budget,
            missing=self.missing,
            stored_bytes=self.stored_bytes,
            held_bits=self.held_bits,
            recorded=self.recorded.sizes() if self.recorded else {},
            device_of=self.device_of,
        )


def sizing_of(parts: Parts, header: Header, stored_bytes: Sequence[int]) -> Sizing:
    """The sizes of these parts, whose selector is prepared, with a trace of this ``header``.

    ``stored_bytes``: the bytes of an expert at each precision in a real store, which holds them as
    they are. They replace what the model and the trace say.
    """
    model, selector = parts.model, parts.precision
    recorded = None
    if not stored_bytes:
        recorded = recorded_bytes(trace_directory(parts.trace.path), header, model)
    return Sizing(
        model=model,
        precisions=selector.precisions,
        missing=selector.missing(),
        stored_bytes=stored_bytes,
        held_bits=0.0 if stored_bytes else held_bits(selector.held, parts.hardware),
        recorded=recorded,
        device_of=device_of(parts.hardware, model),
    )
