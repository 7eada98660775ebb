"""The least that offloading can cost its host: a loop of runtime calls around an LRU list.

It moves and computes what a run of the engine does, expert by expert: a site's dense work and its
read-out, one launch for what is there, a copy and a launch for each miss. It has no controller, no
record and no policy, so the engine beside it shows what these cost.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import torch

from real.cuda.arena import PinnedArena, ring_bytes
from real.cuda.lanes import Lane
from real.cuda.runtime import Runtime
from real.cuda.segments import Kind, Segments, fused_expert, tables_bytes
from real.kernels.slot_matrices import PlainLayout, SlotMatrices
from sim.machine.model import Model

AT_HOME = 64
"""How many experts rest in pinned memory at most; the others are copied from the same places."""
HOME_BYTES = 4 << 30
"""What these may take."""


class BareLoop:
    """The loop for a model's sizes with ``slots`` experts of 16 bits on the device."""

    def __init__(self, runtime: Runtime, model: Model, slots: int) -> None:
        if slots <= model.top_k:
            raise ValueError(f"{slots} slots hold no gate of {model.top_k} experts beside another")
        self._runtime, self._experts, self._slots = runtime, model.experts, slots
        self._compute, self._copies = (Lane(runtime, name) for name in ("compute", "copies"))
        first = PlainLayout(2 * model.expert_intermediate, model.hidden, torch.float16)
        down = PlainLayout(model.hidden, model.expert_intermediate, torch.float16)
        self.expert_bytes = first.stored_bytes + down.stored_bytes
        pool = runtime.allocate(slots * self.expert_bytes).view(slots, -1)
        x_1H = runtime.allocate(2 * model.hidden).view(torch.float16).view(1, -1)
        self._dense_weight = runtime.allocate(8 * model.hidden**2).view(torch.float16)
        self._dense_weight = self._dense_weight.view(-1, model.hidden)
        count = max(1, min(AT_HOME, model.experts, HOME_BYTES // self.expert_bytes))
        self._arena = PinnedArena(
            runtime, ring_bytes(count, self.expert_bytes) + tables_bytes(model.top_k)
        )
        home = [self._arena.take(self.expert_bytes).zero_() for _ in range(count)]
        self._home, self._targets = (list(map(runtime.memory_of, some)) for some in (home, pool))
        zeroed = (pool, x_1H, self._dense_weight)
        runtime.run(self._compute.stream, lambda: [one.zero_() for one in zeroed], writes=zeroed)
        matrices = SlotMatrices(pool, first), SlotMatrices(pool, down, first.stored_bytes)
        kind = Kind(fused_expert(*matrices, is_gated=True), pool)
        self._segments = Segments(runtime, self._compute, self._arena, [kind], x_1H, model.top_k)
        self._dense = runtime.capture(
            self._compute.stream, partial(torch.mv, self._dense_weight, x_1H[0])
        )
        self._compute.finish()
        self._held: OrderedDict[int, int] = OrderedDict()

    def close(self) -> None:
        for lane in (self._compute, self._copies):
            lane.finish()
        self._arena.close()

    def run(self, tokens: Iterator[Sequence[Sequence[int]]]) -> tuple[float, float]:
        """Run ``tokens``, of each the chosen experts site by site.

        Return the median ns of a token, and the misses of one on average; the first half of them
        only fills the slots.
        """
        took, missed = [], []
        for sites in tokens:
            began_ns = time.perf_counter_ns()
            missed.append(sum(self._site(site, chosen) for site, chosen in enumerate(sites)))
            self._read_out()
            took.append(time.perf_counter_ns() - began_ns)
        half = len(took) // 2
        return median(took[half:]), sum(missed[half:]) / len(missed[half:])

    def _read_out(self) -> None:
        mark = self._compute.mark()
        while not self._compute.has_passed(mark):
            pass

    def _site(self, site: int, chosen: Sequence[int]) -> int:
        runtime, compute, copies = self._runtime, self._compute, self._copies
        runtime.replay(self._dense, compute.stream)
        self._read_out()
        keys = [site * self._experts + expert for expert in chosen]
        there = [key for key in keys if key in self._held]
        for key in there:
            self._held.move_to_end(key)
        coming = []
        for key in (key for key in keys if key not in there):
            free = len(self._held) < self._slots
            slot = len(self._held) if free else self._held.popitem(last=False)[1]
            self._held[key] = slot
            source = self._home[key % len(self._home)]
            runtime.move(self._targets[slot], source, self.expert_bytes, copies.stream)
            coming.append((slot, copies.mark()))
        if there:
            self._segments.launch(0, [self._held[key] for key in there])
        for slot, mark in coming:
            while not copies.has_passed(mark):
                pass
            self._segments.launch(0, [slot])
        return len(coming)
