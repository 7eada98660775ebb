"""An engine's kernels: what their number, order and tiles do to the time of the machine's compute."""

from __future__ import annotations

from dataclasses import dataclass

from sim.values.tiles import WIDTHS
from sim.values.units import require_flag, require_number, require_range

COUNTS = (
    "more_launches",
    "inner_values",
    "outer_values",
    "layer_values",
    "head_values",
    "head_dim",
    "causal_rows",
)
SHARES = ("weight_share", "attention_share")


@dataclass(frozen=True)
class Kernels:
    """An engine's kernels (contract C81). As they are by default, times are those of the machine's file.

    - ``together``: a layer's experts are computed in kernels that take them together, so that
      launches are a layer's and not an expert's.
    - ``launches``: how many kernels compute a layer beside its experts; None: as many as the
      machine's file says. ``more_launches``: how many more a layer has in a step of several rows.
    - ``weight_share``: at which share of the rate that the machine's file says they read weights.
      ``attention_share``: at which share of it attention reads keys and values.
    - ``row_share``: what each further row of up to eight adds to the reading of weights, as a share
      of the first one's.
    - ``tile_rows``: how wide the tiles are at most in which more rows than eight are multiplied; 0: no
      row more is multiplied than there is.
    - ``inner_values``, ``outer_values``: how many values of 32 bits are handed on for each row of an
      expert in such a step, of the expert's width and of the layer's. ``layer_values``,
      ``head_values``: for each row of a layer, of its width and of its queries' and keys'.
    - ``head_dim``: as how wide at least a head counts in attention's operations in such a step.
    - ``causal_rows``: from how many rows on attention leaves out what comes after a row in such a
      step; with fewer, and of a window, it computes all that the cache holds. 0: only what counts.
    - ``graph_rows``: up to how many rows a step has that is replayed as a graph, where the machine has
      graphs; None: any; 0: none is.

    Raise ValueError for a value that none can have.
    """

    together: bool = False
    launches: int | None = None
    more_launches: int = 0
    weight_share: float = 1.0
    attention_share: float = 1.0
    row_share: float = 0.0
    tile_rows: int = 0
    inner_values: int = 0
    outer_values: int = 0
    layer_values: int = 0
    head_values: int = 0
    head_dim: int = 0
    causal_rows: int = 0
    graph_rows: int | None = 0

    def __post_init__(self) -> None:
        require_flag("kernels.together", self.together)
        for name in ("launches", "graph_rows"):
            if getattr(self, name) is not None:
                require_number(f"kernels.{name}", getattr(self, name), whole=True)
        for name in SHARES:
            share = getattr(self, name)
            require_range(f"kernels.{name}", share, 0.01, 1, "a share of the machine's rate")
        require_range("kernels.row_share", self.row_share, 0, 1, "a share of a row")
        tile: object = self.tile_rows
        if tile not in (0, *WIDTHS) or isinstance(tile, bool | float):
            raise ValueError(
                f"kernels.tile_rows={tile} must be 0, where kernels have no tiles, or one of"
                f" {', '.join(map(str, WIDTHS))} rows"
            )
        for name in COUNTS:
            require_number(f"kernels.{name}", getattr(self, name), whole=True)
