"""The null device with experts that are really computed: a live run on a virtual clock.

All times are the run's durations, so a live run on this device is deterministic on any machine.
"""

from __future__ import annotations

import numpy as np
import torch

from real.driver.device import TAIL, NullDevice, Service
from real.store.neurons import Arrivals
from real.store.reading import RamReader, read_whole
from real.store.work import ExpertWork, SiteInputs, Weights
from sim.values.types import Geometry


class ComputingNullDevice(NullDevice):
    """Moves nothing: an expert is computed from the store, at the precision that serves.

    Of a partial move only the neurons that would have come are computed.
    """

    def __init__(self, geometry: Geometry, weights: Weights) -> None:
        self._geometry, self._store = geometry, weights.store
        self._work_of = ExpertWork(weights, geometry)
        self._home = RamReader(read_whole(weights.store.path, weights.store.header.num_bytes))
        weights.store.check_in_place()
        self.arrivals = Arrivals(geometry, weights.store.header.neurons)

    def serve(self, service: Service) -> None:
        """Begin a service; for a partial move, choose the neurons that it brings."""
        if self._store.header.resident is not None:
            self.arrivals.begin(
                service.key, service.number, service.there_bytes, service.moved_bytes
            )
        super().serve(service)

    def begin_site(self, inputs: SiteInputs) -> None:
        self._work_of.begin_site(inputs)

    def end_site(self) -> torch.Tensor:
        return self._work_of.end_site()

    def up_of(self, site: int, expert: int) -> torch.Tensor:
        return self._work_of.up_of(site, expert)

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        if key != TAIL and self._geometry.expert_of(key) < self._geometry.experts:
            self._run(key, rows)
        super().compute(key, rows, nominal_ns)

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        self._run(key, tokens)
        super().compute_on_cpu(key, tokens, nominal_ns)

    def _run(self, key: int, rows: int) -> None:
        g = self._geometry
        offset = self._store.header.offset(g.precision_of(key), g.site_of(key), g.expert_of(key))
        blob = torch.from_numpy(self._home.bytes[offset : offset + g.bytes_of(key)])
        neurons = self.arrivals.held(key)
        if neurons is not None:
            pairs = blob.view(-1, self.arrivals.pair_bytes(key))
            blob = pairs.index_select(0, torch.from_numpy(np.resize(neurons, len(pairs)))).flatten()
        self._work_of.run(key, blob, self._work_of.rows(key, rows), neurons)
