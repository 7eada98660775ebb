"""What a live gate knows beside its own choice: scores of later routers, and active channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional

from capture.models.discover import MoELayer
from capture.recording.lookahead import router_linear
from capture.recording.record import THRESHOLDS_FILE
from sim.policies.base import FloatArray, IntArray
from sim.traces.trace import Header


@dataclass(frozen=True)
class Eyes:
    """What to look for at a live gate.

    - ``depth``: for how many later sites the ``layers``' routers score this site's input.
    - ``scales``: of the norm before each router. If given, an input is renormed with the later
      site's scale before that site's router scores it.
    - ``thresholds`` [S, E, P] of |x W_up|, and ``up_of(site, expert)``, which gives up projections
      [I, H]: for payloads that move active channels. None: no shares are computed.
    """

    layers: Sequence[MoELayer]
    depth: int = 0
    scales: Sequence[torch.Tensor] | None = None
    thresholds: torch.Tensor | None = None
    up_of: Callable[[int, int], torch.Tensor] | None = None

    @cached_property
    def routers(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        return [router_linear(layer) for layer in self.layers]

    def scores(self, site: int, inputs: torch.Tensor) -> FloatArray:
        """The scores [R, E] of a site's own router for its inputs."""
        weight, bias = self.routers[site]
        return np.asarray(functional.linear(inputs.float().cpu(), weight, bias).numpy())

    def ahead(self, site: int, inputs: torch.Tensor, reach: int) -> list[FloatArray]:
        """Lookahead scores [R, E] of each of the next ``reach`` sites.

        There are at most ``depth`` of them, and none beyond the last site.
        """
        found = []
        fed = inputs.float().cpu()
        for target in range(site + 1, min(site + 1 + min(reach, self.depth), len(self.layers))):
            weight, bias = self.routers[target]
            seen = fed if self.scales is None else fed / self.scales[site] * self.scales[target]
            found.append(functional.linear(seen, weight, bias).numpy())
        return found

    def shares(self, site: int, hidden: torch.Tensor, ids: IntArray) -> FloatArray | None:
        """The share of active channels of each choice, [R, K, P], 0 where a choice was dropped.

        None where no payload asks.
        """
        if self.thresholds is None or self.up_of is None:
            return None
        shares = np.zeros((*ids.shape, self.thresholds.shape[-1]), np.float32)
        for row, rank in zip(*np.nonzero(ids >= 0), strict=True):
            expert = int(ids[row, rank])
            up = (
                functional.linear(hidden[row : row + 1], self.up_of(site, expert))
                .abs()
                .float()
                .cpu()
            )
            shares[row, rank] = (
                (up[0, :, None] >= self.thresholds[site, expert]).float().mean(0).numpy()
            )
        return shares


def read_thresholds(directory: Path, header: Header, sparsity: float) -> torch.Tensor:
    """The thresholds [S, E, P] of |x W_up| that the trace in ``directory`` has.

    Raise ValueError if it has none for this ``sparsity``.
    """
    place = directory / THRESHOLDS_FILE
    if sparsity not in header.sparsities or not place.is_file():
        raise ValueError(
            f"trace {header.name} has no activation thresholds at payload.sparsity={sparsity:g} (it"
            f" has {list(header.sparsities)}); capture it with sparsities={sparsity:g}"
        )
    found: torch.Tensor = load_file(place)["thresholds"]
    return found
