"""Several devices of one machine: how many, what each has, and how the model is split.

docs/contracts/gpus.md has the splits. Here is which device has which site, and what the machine is
that has one of the devices only; ``sim.machine.devices_costs`` has the times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

from sim.machine.link_parts import RATES
from sim.machine.model import Model
from sim.values.types import Route
from sim.values.units import NS_PER_S, as_written, gb_per_s, require_number, require_range, us

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sim.machine.compute import Compute
    from sim.machine.hardware import Hardware
    from sim.machine.link import Link

LAYERS, SLICES, COPIES, OWNERS = "layers", "slices", "copies", "owners"
SPLITS = (LAYERS, SLICES, COPIES, OWNERS)
OWN, SHARED = "own", "shared"
NUMBER, USE = "number", "use"
MOST = 16


@dataclass(frozen=True)
class Peer:
    """How fast devices send to each other: a message takes ``overhead + bytes / rate``."""

    gb_per_s: float
    overhead_us: float

    def __post_init__(self) -> None:
        place = "hardware.devices.peer"
        require_range(f"{place}.gb_per_s", self.gb_per_s, *RATES, "10**9 bytes a second")
        require_range(f"{place}.overhead_us", self.overhead_us, 0, 1e7, "microseconds")

    def message_ns(self, sent_bytes: int) -> int:
        return us(self.overhead_us) + round(sent_bytes * NS_PER_S / gb_per_s(self.gb_per_s))


@dataclass(frozen=True)
class Device:
    """A device that is not like the machine's own."""

    memory_gib: float
    reserved_gib: float
    compute: Compute
    link: Link


@dataclass(frozen=True)
class Devices:
    """The devices of a machine and what each of them has of the model (contract C156).

    - ``count``: how many there are. The last ones may be ``others``, by name.
    - ``split``: ``layers``, ``slices``, ``copies`` or ``owners``.
    - ``peer``: how they send to each other. An activation has ``state_bits`` bits.
    - ``links``: whether each device has a link of its own, or all are behind one.
    - ``shares``: with ``layers`` and ``owners``, a number for each device (contracts C157, C169);
      () where all have the same.
    - ``order``: with ``owners``, whether experts are dealt out by ``number`` or by ``use``.
      ``ranked`` has every (site, expert) by use then, the most used first; a run fills it in.
    """

    count: int
    split: str
    peer: Peer
    links: str = OWN
    shares: Sequence[float] = ()
    others: Mapping[str, Device] = field(default_factory=dict)
    state_bits: float = 16.0
    order: str = NUMBER
    ranked: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        place = "hardware.devices"
        require_number(f"{place}.count", self.count, minimum=2, maximum=inf, whole=True)
        require_range(f"{place}.count", self.count, 2, MOST, "devices; one device: devices=null")
        orders = (NUMBER, USE) if self.split == OWNERS else (NUMBER,)
        for name, allowed in (("split", SPLITS), ("links", (OWN, SHARED)), ("order", orders)):
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{place}.{name}={value!r}; allowed: {', '.join(allowed)}")
        if not isinstance(self.peer, Peer):
            raise ValueError(
                f"{place}.peer={self.peer!r} must be a section: _target_: sim.machine.Peer,"
                " gb_per_s, overhead_us"
            )
        require_range(f"{place}.state_bits", self.state_bits, 1, 64, "bits of an activation")
        object.__setattr__(self, "shares", tuple(self.shares))
        if self.shares and (
            len(self.shares) != self.count
            or not all(isinstance(s, int | float) and 0 < s < 1e6 for s in self.shares)
        ):
            raise ValueError(
                f"{place}.shares={list(self.shares)} must be {self.count} numbers above 0, one for"
                " each device, or [] where all have the same"
            )
        if not isinstance(self.others, Mapping) or len(self.others) >= self.count:
            raise ValueError(
                f"{place}.others has {len(self.others or ())} devices of {place}.count={self.count};"
                " the first device is the machine's own"
            )
        if not self.is_dealt and (self.shares or self.others):
            raise ValueError(
                f"{place}.split={self.split} takes equal devices: set shares=[] and others={{}}, or"
                " split=layers or owners"
            )

    @property
    def has_layers(self) -> bool:
        return self.split == LAYERS

    @property
    def is_dealt(self) -> bool:
        """Whether each expert is on one device only: that of its layer, or its owner."""
        return self.split in (LAYERS, OWNERS)

    @property
    def copies(self) -> int:
        """On how many devices each slot's expert is."""
        return self.count if self.split == COPIES else 1

    @property
    def parts(self) -> int:
        """In how many parts, one for each device, a transfer moves (contract C161)."""
        return self.count if self.split == SLICES else 1

    @property
    def services(self) -> int:
        """How many services follow each other on a link for each transfer."""
        return 1 if self.is_dealt or self.links == OWN else self.count

    def over_link(self, moved_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """What a link moves of each of these transfers of so many bytes (contract C162)."""
        return self.services * -(-moved_bytes // self.parts)

    def device_of(self, model: Model) -> tuple[int, ...]:
        """By site, the device that has it (contract C157); () where each device has a part of all.

        Raise ValueError where a device would have no site.
        """
        if not self.has_layers:
            return ()
        last = list(accumulate(map(model.layers_at, range(model.sites))))
        found = tuple(self._at(layers - 1, last[-1] + 1) for layers in last)
        if lacking := set(range(self.count)) - set(found):
            raise ValueError(
                f"hardware.devices.shares={list(self.shares) or [1] * self.count} leaves device"
                f" {min(lacking)} of {self.count} without a layer with experts of {model.name}"
                f" ({model.sites} sites); give it a larger share, or set hardware.devices.count"
            )
        return found

    def kv_sites(self, model: Model) -> list[tuple[int, ...]]:
        """By device, the sites whose keys and values it holds, or a part of them."""
        everywhere = tuple(range(model.sites))
        if not self.is_dealt:
            return [everywhere] * self.count
        of = self.device_of(model) or (0,) * model.sites
        return [
            tuple(site for site in everywhere if of[site] == device) for device in range(self.count)
        ]

    def head(self, model: Model) -> int:
        """The device that has the head."""
        layers = sum(map(model.layers_at, range(model.sites)))
        return self._at(layers, layers + 1)

    def owner_of(self, model: Model) -> tuple[int, ...]:
        """By key of a precision, the device that owns it (contract C169).

        Raise ValueError where a device would own no expert.
        """
        stored, units = model.stored_experts, model.experts + 1
        owners = [0] * (model.sites * units)
        if self.order == USE:
            pairs = [(site, expert) for site, expert in self.ranked if expert < stored]
            assert len(pairs) == model.sites * stored, "the run says which experts are used most"
            for place, (site, expert) in enumerate(pairs):
                owners[site * units + expert] = self._at(place, len(pairs))
            found = owners
        else:
            found = [self._at(expert, stored) for expert in range(stored)]
            rest = [0] * (units - stored)
            owners = [*found, *rest] * model.sites
        if lacking := set(range(self.count)) - set(found):
            raise ValueError(
                f"hardware.devices.shares={list(self.shares) or [1] * self.count} leaves device"
                f" {min(lacking)} of {self.count} without an expert of {model.name} ({stored} a"
                " layer); give it a larger share, or set hardware.devices.count"
            )
        return tuple(owners)

    def _at(self, place: int, places: int) -> int:
        """The device that has a place of so many, by its share."""
        parts = [as_written(share) for share in self.shares or [1.0] * self.count]
        sums = list(accumulate(parts))
        return bisect_right(sums, sums[-1] * place / places)

    def link_names(self, name: str) -> tuple[str, ...]:
        """The names of the links, by number; ``name``: that of the machine's."""
        if not self.is_dealt or self.links == SHARED:
            return (name,)
        return (name, *(f"{name}_{device}" for device in range(1, self.count)))

    def state_bytes(self, model: Model, rows: int) -> int:
        """The bytes of so many rows' activations between two layers, rounded up."""
        return -(-rows * model.hidden * as_written(self.state_bits) // 8)

    def crossing_ns(self, model: Model, rows: int) -> int:
        """The time in which activations come to another device."""
        return self.peer.message_ns(self.state_bytes(model, rows))

    def sum_ns(self, model: Model, rows: int) -> int:
        """The time in which all devices add up what they computed, as in a ring."""
        sent = 2 * (self.count - 1) * self.state_bytes(model, rows)
        return self.peer.message_ns(-(-sent // self.count))


def device_of(hardware: Hardware, model: Model) -> tuple[int, ...]:
    """By key of a precision, the device that has it; () where one has all, or each a part of
    all.
    """
    devices = hardware.devices
    if devices is None or not devices.is_dealt:
        return ()
    if devices.has_layers:
        return tuple(of for of in devices.device_of(model) for _ in range(model.experts + 1))
    return devices.owner_of(model)


def with_ranking(hardware: Hardware, ranking: Sequence[tuple[int, int]]) -> Hardware:
    """The machine, whose devices own experts in this order of use."""
    assert hardware.devices is not None
    return replace(hardware, devices=replace(hardware.devices, ranked=tuple(ranking)))


def each_alone(hardware: Hardware) -> Iterator[Hardware]:
    """By device, the machine that has this device only."""
    devices = hardware.devices
    assert devices is not None
    one = replace(hardware, devices=None)
    yield from [one] * (devices.count - len(devices.others))
    for other in devices.others.values():
        link = replace(other.link, name=one.links[0].name)
        yield replace(
            one,
            memory_gib=other.memory_gib,
            reserved_gib=other.reserved_gib,
            compute=other.compute,
            links=(link,),
        )


def faster(compute: Compute, times: int) -> Compute:
    """A device with so many times the rates: what each of so many equal ones does of a part."""
    return replace(
        compute,
        peak_tflops=compute.peak_tflops * times,
        memory_gb_per_s=compute.memory_gb_per_s * times,
    )


def route_of(hardware: Hardware, model: Model) -> Route:
    """The machine's route; with links of their own, those of its devices."""
    devices = hardware.devices
    if devices is None or not devices.is_dealt or devices.links == SHARED:
        return hardware.route
    routes = [one.route for one in each_alone(hardware)]
    return Route(
        engines=tuple(route.engines[0] for route in routes),
        head_bytes=(0,) * devices.count,
        link_of=device_of(hardware, model),
    )


def check_devices(hardware: Hardware) -> None:
    """Raise ValueError for parts of a machine that several devices refuse (contract C163)."""
    devices = hardware.devices
    assert devices is not None
    kind, compute = type(hardware.links[0]), type(hardware.compute)
    for name, other in devices.others.items():
        if not (
            isinstance(other, Device)
            and isinstance(other.compute, compute)
            and isinstance(other.link, kind)
        ):
            raise ValueError(
                f"hardware.devices.others.{name}={other!r} must be a section: _target_:"
                " sim.machine.Device, memory_gib, reserved_gib, compute, link"
            )
    links = [hardware.links[0], *(other.link for other in devices.others.values())]
    refused = {name: getattr(hardware, name) for name in ("ram", "shared_memory", "measured")}
    refused |= {"forecasting": hardware.forecasting, "beside": hardware.beside}
    in_step = () if devices.is_dealt else ("reads", "gather", "unpack", "scattered")
    for part in ("page_cache", "slot_us", *in_step):
        refused[f"links.{links[0].name}.{part}"] = next(
            (value for link in links if (value := getattr(link, part))), None
        )
    if len(hardware.links) > 1:
        refused["links"] = ", ".join(link.name for link in hardware.links)
    if not devices.is_dealt and links[0].engines > 1:
        refused[f"links.{links[0].name}.engines"] = links[0].engines
    for name, value in refused.items():
        if value:
            told = value if isinstance(value, int | float | str) else "given"
            raise ValueError(
                f"hardware.{name} ({told}) does not go with hardware.devices"
                f" (split={devices.split}); choose a machine without it, or one device (no gpus=,"
                " hardware.devices=null)"
            )
    for _ in each_alone(hardware):
        pass  # each is a machine, and refuses what no machine may have
