"""Reads and writes traces: what a model's routers saw and chose, as a directory.

A *token-row* is one token of one forward step; a *site* is one MoE block. In memory a trace is a
set of numpy arrays over token-rows and sites (`sim.traces.rows`). On disk it is:

- ``header.json``;
- ``routes.parquet``, with a row for each site and token-row, ordered by site, then step, then row
  in the step;
- other files that the header lists.

Prompts may be kept as counts of tokens (`sim.traces.prefill`). Weights and wide columns (logits,
lookahead, norms, activation shares) may be stored as small integers times a step that the header
states. They always come back as float32. Wide columns are read only when asked for. In an
encoder-decoder model a row visits the sites of one stack only; at the other sites it has ids of -1,
weights of 0, and NaN.

Reading checks every byte against the header's sha256, and every column against the header, before
anything is used. Nothing is ever evaluated. One limit: whoever forges a parquet file *and* its
sha256 can make the parquet parser itself run out of memory.
"""

from sim.traces.header import (
    Finding,
    Header,
    Lookahead,
    ModelShape,
    Site,
    TraceSequence,
    trace_sha256,
)
from sim.traces.reading import read_header, read_trace
from sim.traces.rows import CHUNK, DECODE, PREFILL, Trace
from sim.traces.writing import write_findings, write_trace
from sim.values.fields import TraceError

__all__ = [
    "CHUNK",
    "DECODE",
    "PREFILL",
    "Finding",
    "Header",
    "Lookahead",
    "ModelShape",
    "Site",
    "Trace",
    "TraceError",
    "TraceSequence",
    "read_header",
    "read_trace",
    "trace_sha256",
    "write_findings",
    "write_trace",
]
