"""What a micro-batch takes of a GPU's memory in llama.cpp (contract C154)."""

from __future__ import annotations

from sim.machine.model import Model

NUMBER_BYTES = 4
CELLS = 256
"""A cache of keys and values has a multiple of so many tokens."""


def graph_bytes(
    model: Model, rows: int, context: int, *, staged_bytes: int = 0, flash: bool = True
) -> int:
    """The bytes in which a micro-batch of ``rows`` is computed, each with a mask of ``context`` tokens:
    the "compute buffer" of the engine's log.

    It is set aside before the first token, for the largest moment of a full micro-batch
    (``src/llama-context.cpp``, ``graph_reserve``). Activations have 32 bits. ``staged_bytes`` is
    the largest tensor of a layer's experts that is uploaded for its batch. The largest of three
    moments counts:

    - at the head a row has its logits and its state;
    - at a layer's experts it has what its experts make between and behind their matrices, its state
      three times, and the mask, beside the uploaded tensor;
    - at attention without ``flash`` it has a score of each head for each token, the mask, what goes
      into attention and comes out of it, and its state twice.
    """
    head = model.vocab + model.hidden
    made = model.top_k * (model.expert_intermediate + model.hidden)
    experts = context + made + 3 * model.hidden
    attention = 0
    if not flash:
        width = model.heads * model.head_dim
        attention = (model.heads + 1) * context + 2 * (width + model.hidden)
    row_bytes = NUMBER_BYTES * rows
    return max(row_bytes * head, row_bytes * experts + staged_bytes, row_bytes * attention)


def window_bytes(model: Model, rows: int, context: int) -> int:
    """The bytes of keys and values that layers with a window hold beyond it, of one sequence: its
    newest micro-batch of ``rows`` (``src/llama-kv-cache-iswa.cpp``).
    """
    by_window = model.kv_bytes_by_window()
    return sum(
        size * max(0, min(context, -(-(window + rows) // CELLS) * CELLS) - window)
        for window, size in by_window.items()
        if window
    )
