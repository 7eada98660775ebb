"""Attention as sizes: keys and values that are cached compressed, and windows of the last tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.values.units import require_flag, require_number


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose keys and values are cached as one compressed vector (DeepSeek-V2's MLA).

    ``query_rank`` is the width of compressed queries, 0 where they are not compressed. ``kv_rank``
    and ``rope_dim`` together are the width of what a layer caches. ``nope_dim``, ``rope_dim`` (of
    queries) and ``value_dim`` are widths of one head. ``unfolds``: whether the engine may unfold all
    keys and values before it attends to them.
    """

    query_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    unfolds: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("kv_rank", "rope_dim", "nope_dim", "value_dim"):
            require_number(f"model.latent.{name}", getattr(self, name), minimum=1, whole=True)
        require_number("model.latent.query_rank", self.query_rank, whole=True)
        require_flag("model.latent.unfolds", self.unfolds)

    def params(self, hidden: int, heads: int) -> int:
        queries = heads * (self.nope_dim + self.rope_dim)
        rank = self.query_rank
        into_queries = hidden * rank + rank + rank * queries if rank else hidden * queries
        into_cache = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
        out_of_cache = self.kv_rank * heads * (self.nope_dim + self.value_dim)
        return into_queries + into_cache + out_of_cache + heads * self.value_dim * hidden

    def flops(self, pairs: float, earlier: int) -> float:
        """The operations of one head, its projections left out. ``pairs``: of a row and a token that
        it attends to; ``earlier``: how many of these tokens are no rows of the step.

        Keys and values are used as they are, or all are unfolded first if the engine may:
        whichever takes fewer operations (contract C81). Rows unfold their own by a projection that
        is counted with the others.
        """
        compressed = 2 * (2 * self.kv_rank + self.rope_dim) * pairs
        if not self.unfolds:
            return compressed
        unfolded = 2 * (self.nope_dim + self.rope_dim + self.value_dim) * pairs
        unfolding = 2 * self.kv_rank * (self.nope_dim + self.value_dim) * earlier
        return min(compressed, unfolded + unfolding)


def attended_tokens(context: int, rows: int, window: int) -> float:
    """To how many tokens the last ``rows`` of ``context`` attend on average.

    ``window``: to how many of the last ones, 0 for all.
    """
    beyond = min(max(context - window, 0), rows) if window else 0
    # The last row has this many too many without a window, each before it one fewer.
    too_many = beyond * (context - window) - beyond * (beyond - 1) / 2
    return context - (rows - 1) / 2 - too_many / rows


def read_tokens(context: int, rows: int, window: int) -> int:
    """Of how many tokens the last ``rows`` of ``context`` read keys and values, each once."""
    return min(context, window + rows - 1) if window else context


def computed_tokens(context: int, rows: int, window: int, causal_rows: int) -> float:
    """Of how many tokens a kernel computes the scores of each of these rows, on average, where it
    works in whole blocks: all that the cache holds for the rows.

    A kernel of at least ``causal_rows`` rows leaves out what comes after a row. With a window the
    cache holds the window and the rows, in no order, and nothing is left out.
    """
    if window:
        return min(context, window + rows)
    return attended_tokens(context, rows, 0) if rows >= causal_rows else context
