"""What an expert took in the engine that recorded a trace: a file beside the routes that some
formats have.

Runs of that trace's own model take these sizes, site by site, at the precision that the engine
stored its experts at (the header's ``dtype``); at every other precision, and for another model's
sizes, the model's nominal ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.machine.model import PRECISIONS, Model
from sim.traces.header import Header
from sim.traces.residency_log import EXPERT_BYTES_FILE, read_expert_bytes

MOST_APART = 2.0
"""The most that recorded bytes may be of nominal ones, or the other way round, on the mean of
the sites.
"""


@dataclass(frozen=True)
class RecordedBytes:
    """``by_site``: bytes of one expert. ``stored_as``: the engine's name of how its experts are
    stored.
    """

    by_site: tuple[int, ...]
    stored_as: str

    @property
    def precision(self) -> str | None:
        """The precision that ``stored_as`` is a name of, if it is one's."""
        name = self.stored_as.lower()
        return name if name in PRECISIONS else None

    def sizes(self) -> Mapping[str, Sequence[int]]:
        """Bytes by site, by the name of the precision that has them."""
        return {} if self.precision is None else {self.precision: self.by_site}

    def told(self, precisions: Sequence[str]) -> str | None:
        """What a reader of a run at these precisions must know, if its sizes are not the
        recorded ones.
        """
        if self.precision in precisions:
            return None
        way = (
            f"precision={self.precision} takes these"
            if self.precision
            else (
                "import it again with dtype=NAME for runs at that precision to take these"
                f" ({', '.join(PRECISIONS)})"
            )
        )
        return (
            f"the trace's engine stored an expert as {self.stored_as} in {_span(self.by_site)}"
            f" bytes; this run takes the model's nominal ones of {', '.join(precisions)}; {way}"
        )


def recorded_bytes(directory: Path, header: Header, model: Model) -> RecordedBytes | None:
    """What the trace at ``directory`` tells of its own model's experts; None if nothing, or for
    another's sizes.

    Raise `TraceError` for a file that cannot be, ValueError where such bytes are no size of this
    model's experts.
    """
    if EXPERT_BYTES_FILE not in header.files or model.transplant is not None:
        return None
    _, by_site = read_expert_bytes(directory / EXPERT_BYTES_FILE, header.model.sites)
    found = RecordedBytes(by_site, header.dtype)
    if found.precision is not None:
        nominal, mean = model.expert_bytes(found.precision), sum(by_site) / len(by_site)
        if not 1 / MOST_APART <= mean / nominal <= MOST_APART:
            raise ValueError(
                f"trace {header.name} records experts of {_span(by_site)} bytes as {header.dtype},"
                f" those of model {model.name} take {nominal}; choose the trace's own model, or say"
                f" that it is another: model.gates_of={header.model.name}"
                f" model.sizes_of={model.name}"
            )
    return found


def _span(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"
