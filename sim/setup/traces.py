"""The trace that a configuration names."""

from __future__ import annotations

from pathlib import Path

from sim.traces.trace import Trace, read_header, read_trace
from sim.values.places import ROOT


def trace_directory(path: str) -> Path:
    """The folder of the trace that a configuration names.

    A relative path counts from the working directory, or else from the project.
    """
    directory = Path(path)
    return directory if directory.is_absolute() or directory.exists() else ROOT / directory


def load_trace(
    path: str,
    lookahead_sites: int,
    active_shares: bool = False,
    norm: str | None = None,
    logits: bool = False,
) -> Trace:
    """The trace at ``path``, with only those of its large columns that are asked for.

    ``lookahead_sites`` above 0 reads lookahead scores: of ``norm``, or of all norms where the trace
    lacks that one. ``active_shares`` and ``logits`` read the columns of these names. A column that
    the trace does not have is left out.
    """
    directory = trace_directory(path)
    header = read_header(directory)
    columns = []
    if lookahead_sites > 0 and header.lookahead is not None:
        columns.append(f"lookahead_{norm}" if norm in header.lookahead.norms else "lookahead")
    if active_shares and header.sparsities:
        columns.append("active_shares")
    if logits and "logits" in header.columns:
        columns.append("logits")
    return read_trace(directory, columns)
