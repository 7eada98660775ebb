"""A machine as numbers: its links from the device outwards, its compute, CPU, memory and host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sim.machine.compute import Compute, Cpu
from sim.machine.contention import COMPUTE, CPU, FIRST_LINK, WHOLE, Contention
from sim.machine.devices import Devices, check_devices, each_alone
from sim.machine.kernels import Kernels
from sim.machine.link import Link
from sim.machine.measured import Measured, time_ns
from sim.machine.parts import Forecasting, Host, Ram, SharedMemory, Swap
from sim.machine.validated import Validated
from sim.values.types import Route
from sim.values.units import gb_per_s, gib, require_range, us

Slowed = TypeVar("Slowed", Link, Compute, Cpu)
NEVER = "none"
"""Says of a machine that no time of it was ever compared."""


@dataclass(frozen=True)
class Hardware:
    """One device and the route by which experts reach it.

    - ``links``: by name, or in a list. The first ends at the device, and each further one ends
      where the one before it begins. Experts rest at the far end of the last.
    - ``ram``: a managed RAM tier on the route, or None.
    - ``cpu``: None where experts are not computed on the host.
    - ``prediction_us``: the time from a gate to its forecasts (0: at once).
    - ``forecasting``: what running gates ahead costs; None where it costs nothing more.
    - ``measured``: tables that take the place of formulas.
    - ``beside``: by party and by other party, how many times as long the first one's work takes
      while the other works. Parties are ``compute``, ``cpu`` and links by name; what is not given
      is 1.
    - ``shared_memory``: None where parties draw from no common memory.
    - ``devices``: None where there is one; else figures of memory, compute and link are of each.
    - ``swap``: where weights go that the memory does not hold; None: they must fit.
    - ``preset``: where the figures come from.
    - ``validated``: how far simulated times were from measured ones; ``none`` where nobody
      compared them.
    """

    name: str
    preset: str
    validated: Validated | str
    memory_gib: float
    reserved_gib: float
    links: tuple[Link, ...]
    compute: Compute
    source: str
    host: Host = field(default_factory=Host)
    ram: Ram | None = None
    cpu: Cpu | None = None
    prediction_us: float = 0.0
    forecasting: Forecasting | None = None
    measured: Measured | None = None
    shared_memory: SharedMemory | None = None
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    devices: Devices | None = None
    swap: Swap | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", _named(self.links))
        parts = (
            ("compute", self.compute, Compute),
            ("host", self.host, Host),
            ("ram", self.ram, Ram | None),
            ("cpu", self.cpu, Cpu | None),
            ("forecasting", self.forecasting, Forecasting | None),
            ("measured", self.measured, Measured | None),
            ("shared_memory", self.shared_memory, SharedMemory | None),
            ("devices", self.devices, Devices | None),
            ("swap", self.swap, Swap | None),
        )
        for name, part, kind in parts:
            if not isinstance(part, kind):
                raise ValueError(
                    f"hardware.{name} of {self.name} must be a section with its _target_, got"
                    f" {part!r}"
                )
        require_range("hardware.memory_gib", self.memory_gib, 1e-6, 1e6, "GiB")
        require_range("hardware.reserved_gib", self.reserved_gib, 0, 1e6, "GiB")
        require_range("hardware.prediction_us", self.prediction_us, 0, 1e7, "microseconds")
        if self.reserved_gib > self.memory_gib:
            raise ValueError(
                f"hardware.reserved_gib={self.reserved_gib:g} exceeds"
                f" hardware.memory_gib={self.memory_gib:g}"
            )
        if self.forecasting is not None and self.forecasting.on == "cpu" and self.cpu is None:
            raise ValueError(
                f"hardware.forecasting.on=cpu, but hardware {self.name} has no cpu section"
            )
        if self.measured is not None and (
            unknown := set(self.measured.copy_us) - set(self.link_names)
        ):
            raise ValueError(
                f"hardware.measured.copy_us has {', '.join(sorted(unknown))}; the links of"
                f" {self.name} are {', '.join(self.link_names)}"
            )
        if self.shared_memory is not None:
            self._check_parties("shared_memory.parties", self.shared_memory.parties)
            timed = self.measured.parties if self.measured is not None else set()
            if self.shared_memory.slows == "always" and timed & set(self.shared_memory.parties):
                raise ValueError(
                    "hardware.shared_memory.slows=always lowers rates, but hardware.measured has the"
                    f" times of {', '.join(sorted(timed))}; set slows=as_drawn"
                )
        self._check_beside()
        if self.validated != NEVER and not isinstance(self.validated, Validated):
            raise ValueError(
                f"hardware.validated={self.validated!r} must be {NEVER}, or a section with its"
                " _target_ (sim.machine.Validated)"
            )
        for outer in self.links[1:]:
            if outer.slot_us:
                raise ValueError(
                    f"hardware.links.{outer.name}.slot_us={outer.slot_us:g}: slots are the device's,"
                    f" where {self.links[0].name} ends; give it there"
                )
        if self.devices is not None:
            check_devices(self)
            if self.swap is not None:
                raise ValueError(
                    f"hardware.swap of {self.name} is of one device; set hardware.swap=null, or"
                    " hardware.devices=null"
                )
        others = ["devices"] if self.devices is not None else []
        others += ["beside and shared_memory"] if self.contention is not None else []
        if self.lanes and others:
            raise ValueError(
                f"hardware.{self.lanes[0]} of {self.name} does not go with"
                f" hardware.{' and '.join(others)}: engines with a pace of their own are of one"
                " device, and nobody slows them; leave out one or the other"
            )
        # Computed only to refuse an impossible route here, together with the machine.
        _ = self.route

    def _check_parties(self, place: str, names: Iterable[str]) -> None:
        known = {"compute", *(["cpu"] if self.cpu is not None else []), *self.link_names}
        if unknown := set(names) - known:
            raise ValueError(
                f"hardware.{place} has {', '.join(sorted(map(str, unknown)))}; those of"
                f" {self.name} are {', '.join(sorted(known))}"
            )

    def _check_beside(self) -> None:
        if not isinstance(self.beside, Mapping):
            raise ValueError(
                f"hardware.beside={self.beside!r} must map a party to others and how many times as"
                " long it takes beside them"
            )
        self._check_parties("beside", self.beside)
        for name, others in self.beside.items():
            if not isinstance(others, Mapping):
                raise ValueError(
                    f"hardware.beside.{name}={others!r} must map other parties to how many times as"
                    " long"
                )
            self._check_parties(f"beside.{name}", others)
            for other, times in others.items():
                require_range(f"hardware.beside.{name}.{other}", times, 1, 1e3, "times as long")
                if name == other:
                    raise ValueError(f"hardware.beside.{name}.{other}: no party is its own rival")

    @property
    def lanes(self) -> list[str]:
        """What of contracts C165 to C168 the machine has, as words; empty where it has nothing."""
        found = [
            f"links.{link.name}.{name}={getattr(link, name)}"
            for link in self.links
            for name in ("engine_gb_per_s", "wake_us", "copy_gb_per_s", "unit")
            if getattr(link, name) not in (None, 0, "variant")
        ]
        host = (("load_us", self.host.load_us), ("load_gb_per_s", self.host.load_gb_per_s))
        return found + [f"host.{name}={value:g}" for name, value in host if value]

    @property
    def title(self) -> str:
        """The name, with how many devices there are if there are several."""
        if self.devices is None:
            return self.name
        return f"{self.devices.count} x {self.name} ({self.devices.split})"

    @property
    def is_unified(self) -> bool:
        """Whether the device's memory is the host's: it and its last link draw from one."""
        shared = self.shared_memory
        return shared is not None and {"compute", self.links[-1].name} <= set(shared.parties)

    @property
    def compared(self) -> Validated | None:
        """How far its times were from measured ones; None where nobody compared them.

        What was compared had one device, so several have no errors either.
        """
        found = self.validated
        return found if isinstance(found, Validated) and self.devices is None else None

    @property
    def memory_bytes(self) -> int:
        return gib(self.memory_gib)

    @property
    def copies(self) -> int:
        """On how many devices each slot's expert is."""
        return 1 if self.devices is None else self.devices.copies

    @property
    def all_memory_bytes(self) -> int:
        """The memory of all devices together."""
        if self.devices is None:
            return self.memory_bytes
        return sum(one.memory_bytes for one in each_alone(self))

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        """The time of one service that has link number ``link`` to itself."""
        one = self.links[link]
        if self.measured is not None and one.name in self.measured.copy_us:
            return time_ns(self.measured.copy_us[one.name], moved_bytes)
        return one.hop_ns(moved_bytes)

    def predicts_later(self, forecast_sites: int) -> bool:
        """Whether forecasts take effect some time after their gate."""
        on_cpu = (
            self.forecasting is not None and self.forecasting.on == "cpu" and forecast_sites > 0
        )
        return on_cpu or self.prediction_us > 0

    def unpinned(self) -> Hardware:
        """The same machine with copies to the device from pageable memory."""
        first, *outer = self.links
        slower = replace(first, efficiency=first.efficiency * first.pageable)
        measured = self.measured
        if measured is not None:
            measured = measured.with_slower_copies(
                first.name, first.pageable, first.latency_ns / us(1.0)
            )
        return replace(self, links=(slower, *outer), measured=measured)

    def driven_by(self, kernels: Kernels) -> Hardware:
        """The same machine under an engine's kernels: its launches of a layer, and the share of the
        memory's rate at which they read weights. Measured times stay as they are.
        """
        compute, launches = self.compute, kernels.launches
        own = replace(
            compute,
            dense_launches=compute.dense_launches if launches is None else launches,
            memory_efficiency=compute.memory_efficiency * kernels.weight_share,
        )
        return replace(self, compute=own)

    def together(self, uses_cpu: bool) -> Hardware:
        """The same machine with the parties in use slowed by their shared memory, as it says.

        With ``slows: always`` their rates are lowered here; with ``as_drawn`` the run slows them
        (see `SharedMemory`). Where the parties in use never ask for more than the memory gives,
        they no longer share it.
        """
        if self.shared_memory is None:
            return self
        parties = tuple(party for party in self.shared_memory.parties if uses_cpu or party != "cpu")
        rates, memory = self._rates(), gb_per_s(self.shared_memory.gb_per_s)
        if sum(rates[party] for party in parties) <= memory or len(parties) == 1:
            return replace(self, shared_memory=None)
        if self.shared_memory.slows == "as_drawn":
            return replace(self, shared_memory=replace(self.shared_memory, parties=parties))

        # Nobody asks for more than all that the memory gives (contract C73).
        slowed = memory / sum(min(rates[party], memory) for party in parties)

        def less(part: Slowed, name: str, peak: str, efficiency: str) -> Slowed:
            if name not in parties:
                return part
            # What is beyond the memory goes from the peak: no efficiency is too small to be one.
            asked = min(1.0, memory / rates[name])
            lowered = {
                peak: getattr(part, peak) * asked,
                efficiency: getattr(part, efficiency) * slowed,
            }
            if isinstance(part, Link) and part.engine_gb_per_s is not None:
                lowered["engine_gb_per_s"] = part.engine_gb_per_s * asked * slowed
            return replace(part, **lowered)

        of_memory = "memory_gb_per_s", "memory_efficiency"
        return replace(
            self,
            links=tuple(
                less(link, link.name, "peak_gb_per_s", "efficiency") for link in self.links
            ),
            compute=less(self.compute, "compute", *of_memory),
            cpu=less(self.cpu, "cpu", *of_memory) if self.cpu is not None else None,
        )

    @property
    def contention(self) -> Contention | None:
        """How parties slow each other down during a run; None where they do not."""
        shared = (
            self.shared_memory
            if self.shared_memory and self.shared_memory.slows == "as_drawn"
            else None
        )
        party = {"compute": COMPUTE, "cpu": CPU} | {
            name: n for n, name in enumerate(self.link_names, FIRST_LINK)
        }
        kept = {
            (party[name], party[other]): round(WHOLE / times)
            for name, others in self.beside.items()
            for other, times in others.items()
            if times > 1
        }
        if shared is None:
            return Contention(len(self.links), kept) if kept else None
        rates = self._rates()
        draws = {party[name]: rates[name] for name in shared.parties}
        return Contention(len(self.links), kept, gb_per_s(shared.gb_per_s), draws)

    def _rates(self) -> dict[str, float]:
        """The bytes a second that each party draws at full pace, by name."""
        rates = {link.name: link.bytes_per_s for link in self.links} | {
            "compute": _memory_rate(self.compute)
        }
        return rates | ({"cpu": _memory_rate(self.cpu)} if self.cpu is not None else {})

    @property
    def link_names(self) -> tuple[str, ...]:
        """The names of the links, by number."""
        if self.devices is not None:
            return self.devices.link_names(self.links[0].name)
        return tuple(link.name for link in self.links)

    @property
    def route(self) -> Route:
        """What the controller's decisions depend on of the links and the RAM tier.

        Raise ValueError if ``ram.filled_by`` is no link that ends in RAM.
        """
        ram_link: int | None = None
        if self.ram is not None:
            outer = self.link_names[1:]
            if self.ram.filled_by not in outer:
                raise ValueError(
                    f"hardware.ram.filled_by={self.ram.filled_by!r} must be a link that ends in"
                    " RAM: "
                    f"{', '.join(outer) or 'this machine has none (a single link ends at the device); set ram to null'}"
                )
            ram_link = self.link_names.index(self.ram.filled_by)
        return Route(
            engines=tuple(link.engines for link in self.links),
            head_bytes=tuple(link.head_bytes for link in self.links),
            ram_link=ram_link,
            ram_bytes=gib(self.ram.capacity_gib) if self.ram is not None else 0,
        )


def _memory_rate(part: Compute | Cpu) -> float:
    return gb_per_s(part.memory_gb_per_s) * part.memory_efficiency


def _named(given: object) -> tuple[Link, ...]:
    """The links of a machine, each with the name under which it was given, or its number."""
    pairs: list[tuple[object, object]] = []
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, list | tuple):
        pairs = [(getattr(link, "name", "") or number, link) for number, link in enumerate(given)]
    if not pairs:
        raise ValueError(
            f"hardware.links={given!r} must hold at least one link, the one that ends at the device"
            " first"
        )
    links = []
    for name, link in pairs:
        if not isinstance(link, Link):
            raise ValueError(f"hardware.links.{name}={link!r} must be a section with its _target_")
        links.append(replace(link, name=str(name)))
    names = [link.name for link in links]
    if len(set(names)) < len(names):
        raise ValueError(f"hardware.links must have different names, got {', '.join(names)}")
    return tuple(links)
