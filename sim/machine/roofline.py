"""How long a model's work takes on a machine, in whole ns, computed as a roofline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from sim.machine.attention import attended_tokens, computed_tokens, read_tokens
from sim.machine.compute import Compute
from sim.machine.hardware import Hardware
from sim.machine.kernels import Kernels
from sim.machine.lanes import Lanes, in_projections
from sim.machine.model import Model
from sim.machine.precision import PRECISION_BITS
from sim.machine.swap import Paging
from sim.values.tiles import FEW_ROWS, in_tiles
from sim.values.types import HostCosts, Share, Step
from sim.values.units import gib, us

Shares = tuple[Share, ...]
OF_MACHINE = Kernels()
"""Kernels whose times are those of the machine's file."""
WRITTEN_OUT_BITS = 16.0
"""Bits of a weight after it was dequantised for use."""


class Roofline:
    """Durations of a model on a machine, computed as a roofline.

    Implements ``Durations``, ``ContendedDurations`` and ``LanedDurations``.

    - Each sequence of a step attends to its own context, with its own rows. Attention runs after the
      projections, not beside them. Prefill's causal attention reads half its own rows on average. A
      layer with a window attends to no more tokens, and reads those of all its rows. The LM head
      runs for the last row of each sequence, and for every decoded row.
    - ``site_bytes[precision][site]`` is given where a variant's bytes differ between sites; its
      work is then in proportion to them.
    - ``active_share`` is the share of an expert's moved weights that one token reads (FloE's sparse
      kernel). Several rows read all.
    - ``decision_ns`` is host time after every gate beside the machine's own.
    - With ``free_copies`` links take no time: a reference, no machine.
    - ``kernels`` are the engine's. Where they take a layer's experts together, the layer's dense work
      has the experts' launches. Times that were measured have the launches that they were measured
      with.
    - ``forecast_sites`` is how many gates ahead the predictor runs at every gate. It counts where
      the machine says what that costs.
    - ``held_bits`` is the least bits a weight that slots hold.
    - With ``moves_in_part`` experts may move in part: what is not as large as a whole variant comes
      from scattered rows, where link 0 says what that takes.
    - ``draft_layers`` is through how many layers like the last one a draft runs. A step drafts its
      tokens one after another, before its first site.
    """

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        precisions: Sequence[str],
        site_bytes: Sequence[Sequence[int]] | None = None,
        *,
        kernels: Kernels = OF_MACHINE,
        active_share: float = 1.0,
        decision_ns: int = 0,
        free_copies: bool = False,
        forecast_sites: int = 0,
        held_bits: float = 0.0,
        moves_in_part: bool = False,
        draft_layers: int = 0,
    ) -> None:
        self.model, self.hardware = model, hardware
        costs = hardware.host.costs
        self.host: HostCosts = replace(costs, issue_ns=costs.issue_ns + decision_ns)
        self.contention = None if free_copies else hardware.contention
        self.cpu_latency_ns = us(hardware.cpu.round_trip_us) if hardware.cpu is not None else 0
        self._active_share, self._free_copies = active_share, free_copies
        self._kernels = kernels
        inner, outer = kernels.inner_values, kernels.outer_values
        self._row_bytes = 4 * (inner * model.expert_intermediate + outer * model.hidden)
        layer, heads = kernels.layer_values, kernels.head_values
        self._layer_row_bytes = 4 * (layer * model.hidden + heads * model.attention_width)
        # The machine's rate is that of weights (`Hardware.driven_by`).
        self._kv_share = kernels.attention_share / kernels.weight_share
        self._replayed = hardware.compute.replayed
        self._graph_rows = inf if kernels.graph_rows is None else kernels.graph_rows
        launches = hardware.compute.expert_launches
        self._layer_launches, self._expert_launches = (
            (launches, 0) if kernels.together else (0, launches)
        )
        self._resident_bytes = [model.resident_bytes(precision) for precision in precisions]
        self._forecast_ns, later_ns = self._forecasting(forecast_sites)
        self.prediction_ns = us(hardware.prediction_us) + later_ns
        self._precisions = tuple(precisions)
        self._projections: dict[tuple[int, int], Sequence[int]] = {}
        self._measured = hardware.measured
        # By precision: the measured one whose times it takes, if any was measured.
        self._lent = [self._measured.stands_for(p) if self._measured else None for p in precisions]
        self._bits = [PRECISION_BITS[precision] for precision in precisions]
        self._site_bytes = site_bytes
        # The bytes of each variant and its bits a weight, by ascending bytes.
        sizes = site_bytes or [[model.expert_bytes(precision)] for precision in precisions]
        self._variants = sorted(
            {(size, bits) for of, bits in zip(sizes, self._bits, strict=True) for size in of}
        )
        unpacks = [link.unpack.bits for link in hardware.links if link.unpack is not None]
        self._held_bits = max([held_bits, *unpacks])
        self._whole_bytes = {size for size, _ in self._variants} if moves_in_part else None
        self._expert: dict[tuple[int, int, int, int, bool, bool], int] = {}
        self._on_cpu: dict[tuple[int, int, int], int] = {}
        # Sites of equal layers cost the same. Of each kind of site _kinds has the first one;
        # _kind_of has the number of each site's kind.
        alike = [
            (model.block_params(s), model.windows_at(s), model.is_encoder(s))
            for s in range(model.sites)
        ]
        self._kinds = sorted(alike.index(kind) for kind in set(alike))
        self._kind_of = [self._kinds.index(alike.index(kind)) for kind in alike]
        # Of each site how many layers have each window, 0 for none.
        self._windows = [tuple(Counter(windows).items()) for _, windows, _ in alike]
        self._dense: dict[Shares, list[int]] = {}
        self._tail: dict[tuple[int, int, bool], int] = {}
        self._draft_layers = draft_layers
        self.paging: Paging | None = None
        self.slots = 0
        """The slots of the device, which the machine's engine may search at every load."""

    def dense_ns(self, step: Step) -> Sequence[int]:
        shares = step.shares
        by_site = self._dense.get(shares)
        if by_site is None:
            assert len(shares) == len(step.sequences), f"{step} has no share for each sequence"
            times = [self._layers_ns(site, shares) + self._forecast_ns for site in self._kinds]
            by_site = self._dense[shares] = [times[kind] for kind in self._kind_of]
        if step.drafters and self._draft_layers:
            by_site = list(by_site)
            for nth in range(len(step.drafters)):
                drafting = tuple(Share(1, one.tokens) for one in shares if one.drafts > nth)
                by_site[step.sites[0]] += self._draft_ns(drafting)
        return by_site

    def _draft_ns(self, shares: Shares) -> int:
        """The time in which these sequences get one draft more (contract C151)."""
        last, model, sequences = self.model.sites - 1, self.model, len(shares)
        layer_ns = self._layers_ns(last, shares)
        experts_ns = sequences * model.top_k * self.expert_ns(0, last, 1, sequences)
        return self._draft_layers * (layer_ns + experts_ns) + self._tail_ns(
            sequences, model.head_params, self._is_replayed(sequences)
        )

    def _forecasting(self, sites: int) -> tuple[int, int]:
        """The time that running so many gates ahead for one row takes.

        Returns what it adds to the dense work, and what it adds to the time until the forecasts.
        """
        part, m = self.hardware.forecasting, self.model
        if part is None or not sites:
            return 0, 0
        params = sites * m.experts * m.hidden
        flops, read_bytes = 2 * params, params * m.dense_bits / 8
        if part.on == "compute":
            return self._driven(self._is_replayed(1)).operation_ns(
                flops, read_bytes, part.launches
            ), 0
        assert self.hardware.cpu is not None
        return 0, self.hardware.cpu.operation_ns(flops, read_bytes)

    def _layers_ns(self, site: int, shares: Shares) -> int:
        """The time of one site's layers without its experts, and without gates run ahead.

        An encoder's rows attend to all of their prompt. Several rows, and contexts beyond a table of
        measured times, take no less than the table says, and no less than the formula.
        """
        m, windows = self.model, self._windows[site]
        least_ns, layers = 0, m.layers_at(site)
        rows, longest = sum(one.rows for one in shares), max(one.tokens for one in shares)
        compute = self._driven(self._is_replayed(rows))
        if self._measured is not None and self._measured.dense_us:
            seen = sum(n * min(longest, window or longest) for window, n in windows) // layers
            least_ns = self._measured.dense_ns(m.block_params(site), seen)
            if rows == 1 and seen <= self._measured.dense_us[-1][0]:
                return least_ns
        encodes, is_many = m.is_encoder(site), rows > FEW_ROWS
        params = m.block_params(site) - (0 if encodes else layers * m.cross_kv_params)
        attention_flops, kv_bytes = 0.0, 0.0
        for window, count in windows:
            for own_rows, tokens, _ in shares:
                attended = tokens if encodes else self._scored(tokens, own_rows, window, is_many)
                read = read_tokens(tokens, own_rows, window)
                attention_flops += count * m.attention_flops(own_rows * attended, read - own_rows)
                kv_bytes += count * m.layer_kv_bytes * read
        launches = (
            layers * (compute.dense_launches + (self._kernels.more_launches if rows > 1 else 0))
            + (layers - 1 + (m.shared_intermediate > 0)) * compute.expert_launches
            + self._layer_launches
        )
        of_weights = float(2 * self._in_tiles(rows) * params), self._dense_read(params, rows)
        if is_many and m.latent is None:
            attention_flops *= max(1.0, self._kernels.head_dim / m.head_dim)
        of_attention = attention_flops, kv_bytes / self._kv_share
        of_rows = 0.0, float(layers * rows * self._layer_row_bytes) if is_many else 0.0
        return max(least_ns, compute.operations_ns((of_weights, of_attention, of_rows), launches))

    def _scored(self, tokens: int, rows: int, window: int, is_many: bool) -> float:
        """Of how many of a sequence's tokens attention computes the scores of each row, on average."""
        if is_many and self._kernels.causal_rows:
            return computed_tokens(tokens, rows, window, self._kernels.causal_rows)
        return attended_tokens(tokens, rows, window)

    def _is_replayed(self, rows: int) -> bool:
        """Whether a step of so many rows is replayed as a graph, if the machine has graphs."""
        return rows <= self._graph_rows

    def _driven(self, replayed: bool) -> Compute:
        return self._replayed if replayed else self.hardware.compute

    def _slower(self, rows: int) -> float:
        """By which factor so many rows read weights more slowly than one."""
        return 1 + self._kernels.row_share * (min(rows, FEW_ROWS) - 1)

    def _in_tiles(self, rows: int) -> int:
        """How many rows a matrix is multiplied with that all rows of a step need."""
        return in_tiles(rows, rows, self._kernels.tile_rows)

    def _dense_read(self, params: int, rows: int) -> float:
        """The bytes of dense weights that rows read, as many more as they are slower."""
        return params * self.model.dense_bits / 8 * self._slower(rows)

    def tail_ns(self, step: Step) -> int:
        """The time of the LM head.

        After an encoder has read a prompt it is the time to make the decoder's keys and values of
        the prompt instead.
        """
        m = self.model
        rows, params = step.head_rows, m.head_params
        if m.encoder_sites and not step.decode:
            layers = sum(m.layers_at(site) for site in range(m.encoder_sites, m.sites))
            rows, params = step.rows, layers * m.cross_kv_params
        return self._tail_ns(rows, params, self._is_replayed(step.rows))

    def _tail_ns(self, rows: int, params: int, replayed: bool) -> int:
        at = rows, params, replayed
        if at not in self._tail:
            compute = self._driven(replayed)
            self._tail[at] = compute.operation_ns(
                2 * self._in_tiles(rows) * params,
                self._dense_read(params, rows),
                compute.tail_launches,
            )
        return self._tail[at]

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        if self._site_bytes is None:
            site = 0  # sites differ only in their bytes
        step_rows = rows or tokens
        multiplied = in_tiles(tokens, step_rows, self._kernels.tile_rows)
        is_many, replayed = step_rows > FEW_ROWS, self._is_replayed(step_rows)
        at = precision, site, tokens, multiplied, is_many, replayed
        if at not in self._expert:
            self._expert[at] = self._one_expert_ns(*at)
        return self._expert[at]

    def _one_expert_ns(
        self,
        precision: int,
        site: int,
        tokens: int,
        multiplied: int,
        is_many: bool,
        replayed: bool,
    ) -> int:
        """``multiplied``: how many rows the arithmetic is of, those that fill a tile included.
        ``is_many``: whether the step has more rows than are multiplied one after another.
        """
        least_ns = 0
        if self._measured is not None and (lent := self._lent[precision]) is not None:
            least_ns = self._measured.expert_ns(lent, self.model.expert_params, tokens)
            if tokens <= self._measured.expert_us[lent][-1][0]:
                return least_ns
        params, moved_bytes = self._expert_size(precision, site)
        compute = self._driven(replayed)
        share = self._active_share if tokens == 1 else 1.0
        read_bytes = moved_bytes * share + self._resident_bytes[precision]
        written_out = 0
        if self._bits[precision] < self._held_bits:
            read_bytes *= self._held_bits / self._bits[precision]
        elif compute.dequantise_launches and self._bits[precision] < WRITTEN_OUT_BITS:
            in_full = read_bytes * WRITTEN_OUT_BITS / self._bits[precision]
            written_out = compute.operation_ns(0, read_bytes + in_full, compute.dequantise_launches)
            read_bytes = in_full
        of_weights = float(2 * multiplied * params), read_bytes * self._slower(tokens)
        of_rows = 0.0, float(tokens * self._row_bytes) if is_many else 0.0
        formula_ns = written_out + compute.operations_ns(
            (of_weights, of_rows), self._expert_launches
        )
        return max(least_ns, formula_ns)

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        """As in ``Durations``; raise ValueError if this machine has no CPU that computes."""
        cpu = self.hardware.cpu
        if cpu is None:
            raise ValueError(
                f"hardware {self.hardware.name} has no cpu section, so no expert can be computed on"
                " the CPU; choose placement=load, or a machine whose file has one"
            )
        if (precision, site, tokens) not in self._on_cpu:
            params, moved_bytes = self._expert_size(precision, site)
            read_bytes = moved_bytes + self._resident_bytes[precision]
            self._on_cpu[precision, site, tokens] = cpu.operation_ns(
                2 * tokens * params, read_bytes
            )
        return self._on_cpu[precision, site, tokens]

    def _expert_size(self, precision: int, site: int) -> tuple[float, float]:
        """The parameters and the bytes of an expert."""
        bits = self._bits[precision]
        if self._site_bytes is None:
            return self.model.expert_params, self.model.expert_params * bits / 8
        size = self._site_bytes[precision][site]
        return size * 8 / bits, size

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._copy_ns(link, moved_bytes) + self._search_ns(link)

    def _search_ns(self, link: int) -> int:
        """The host time in which the engine looks for a free slot among all."""
        return 0 if self._free_copies else us(self.slots * self.hardware.links[link].slot_us)

    def _copy_ns(self, link: int, moved_bytes: int) -> int:
        if self._free_copies:
            return 0
        scattered = self.hardware.links[link].scattered if link == 0 else None
        is_part = self._whole_bytes is not None and moved_bytes not in self._whole_bytes
        if is_part and scattered is not None:
            return self.hardware.hop_ns(link, 0) + scattered.time_ns(moved_bytes)
        if (unpack := self.hardware.links[link].unpack) is None:
            return self.hardware.hop_ns(link, moved_bytes)
        return self.hardware.hop_ns(link, moved_bytes) + unpack.time_ns(
            moved_bytes, self._bits_of(moved_bytes)
        )

    def _bits_of(self, moved_bytes: int) -> float:
        """The bits a weight of what a link moves, told by its size.

        It is taken to be all or a part of the smallest variant that has so many bytes. What is
        larger than any variant is dense weights.
        """
        return next(
            (bits for size, bits in self._variants if moved_bytes <= size), self.model.dense_bits
        )

    def latency_ns(self, link: int) -> int:
        if self._free_copies:
            return 0
        return self.hardware.links[link].latency_ns + self._search_ns(link)

    def lanes(self, link: int) -> Lanes | None:
        return None if self._free_copies else self.hardware.links[link].lanes

    def projection_bytes(self, precision: int, site: int, moved_bytes: int) -> Sequence[int]:
        at = precision, moved_bytes
        if at not in self._projections:
            nominal = self.model.projection_bytes(self._precisions[precision])
            self._projections[at] = in_projections(nominal, moved_bytes)
        return self._projections[at]

    def page_cache_bytes(self, link: int) -> int:
        pages = self.hardware.links[link].page_cache
        return gib(pages.capacity_gib) if pages is not None and not self._free_copies else 0

    def kept_ns(self, link: int, moved_bytes: int) -> int:
        pages = self.hardware.links[link].page_cache
        assert pages is not None
        return pages.kept_ns(moved_bytes) + self._search_ns(link)
