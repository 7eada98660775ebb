"""Refusals before anything is built: settings that cannot be, and parts that do not go
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sim.bounds.bounds import METHODS, NONE
from sim.machine.hardware import Hardware
from sim.policies.base import Policy
from sim.setup.configure import in_a_line
from sim.setup.parts import LATER, PARTS, Parts
from sim.traces.trace import Trace
from sim.values.types import Geometry
from sim.values.units import GIB, require_number
from sim.verbs.names import WHOLE
from sim.workload.batching import NO_ARRIVALS
from sim.workload.steps import Workload

BUDGET = ("resident_share", "slots_gib")
SETTINGS = ("budget", "seed", "outputs", "bounds", "timeline_steps", "output_dir")
OUTPUTS = ("all", "summary")
FIT = "fit"
"""The budget that takes as many bytes for experts as the device's memory leaves."""
FIGURES = ("peak_gb_per_s", "efficiency", "overhead_us", "per_call_us", "calls", "call_bytes")
"""Those of a link for which a table of measured times stands."""
MISSING = "???"
"""The value in a file of ``conf/`` that the command line must give."""


def checked_settings(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as plain values, resolved.

    Raise ValueError for a value that is not set, for an unknown key, and for a part that is no
    section.
    """
    try:
        plain = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    except OmegaConfBaseException as error:
        raise ValueError(in_a_line(error)) from None
    config = {str(name): value for name, value in dict(plain).items()}  # type: ignore[arg-type]
    if _lacks_values(config):
        missing = [key for key, value in _leaves(config) if value == MISSING]
        raise ValueError(
            f"configuration values not set: {', '.join(sorted(missing))}; give them on the command"
            " line"
        )
    if config["outputs"] not in OUTPUTS:
        raise ValueError(f"unknown outputs={config['outputs']}; allowed: {', '.join(OUTPUTS)}")
    if (method := config.get("bounds", NONE)) not in METHODS:
        raise ValueError(f"unknown bounds={method}; allowed: {', '.join(METHODS)}")
    if config["timeline_steps"] is not None:
        require_number("timeline_steps", config["timeline_steps"], minimum=1, whole=True)
    require_number("seed", config["seed"], maximum=inf, whole=True)
    known = {*PARTS, *SETTINGS}
    if unknown := [name for name in config if name not in known]:
        whole = "; the file of a system or experiment begins with # @package _global_"
        raise ValueError(
            f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            f"{whole if {*unknown} & {*WHOLE} else ''}"
        )
    given = config["budget"] if isinstance(config["budget"], dict) else {}
    if unknown := [f"budget.{name}" for name in given if name not in BUDGET]:
        raise ValueError(
            f"unknown settings {', '.join(unknown)}; known: budget.{', budget.'.join(BUDGET)}"
        )
    for name in (*PARTS, "budget"):
        if (name == "budget" and config["budget"] == FIT) or (name == LATER and name not in config):
            continue
        if not isinstance(config.get(name), dict):
            raise ValueError(
                f"{name}={config.get(name)} must be a section of values, as in conf/; leave it or"
                " set a value in it"
            )
    if config["budget"] != FIT and "resident_share" not in config["budget"]:
        raise ValueError("budget.resident_share is not given; give a share, or say budget=fit")
    return config


def _lacks_values(node: Any) -> bool:
    if isinstance(node, dict):
        return any(map(_lacks_values, node.values()))
    return any(map(_lacks_values, node)) if isinstance(node, list) else node == MISSING


def _leaves(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested sections and lists with its dotted key."""
    if not isinstance(node, dict | list):
        yield place, node
        return
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for name, value in items:
        yield from _leaves(value, f"{place}.{name}" if place else str(name))


def _check_unpacking(parts: Parts) -> None:
    """Raise ValueError for transfers that are no whole experts on a link that dequantises them.

    Such a link tells a transfer's precision by its bytes.
    """
    loader = parts.loader
    if any(link.unpack is not None for link in parts.hardware.links) and (
        loader.chunk_bytes or loader.dense_slots
    ):
        raise ValueError(
            f"loader.chunk_bytes={loader.chunk_bytes}, dense_slots={loader.dense_slots} do not go"
            " with hardware.links.*.unpack, which is of whole experts; set chunk_bytes=null,"
            " dense_slots=0 or unpack=null"
        )


def _check_kernels(parts: Parts) -> None:
    """Raise ValueError for kernels that take a layer's experts together where each is computed alone."""
    wait = parts.loader.wait
    if parts.kernels.together and wait != "wait_all":
        raise ValueError(
            f"kernels.together takes a layer's experts together, and loader.wait={wait} computes each"
            " by itself; choose loader.wait=wait_all, or kernels=of_machine"
        )


def moves_kv(parts: Parts) -> bool:
    """Whether keys and values may come from RAM or from disk."""
    tiers = parts.workload.tiers(parts.model.kv_bytes_per_token)
    return tiers is not None and tiers.moves


def _check_kv(parts: Parts) -> None:
    """Raise ValueError for what does not go with held prefixes, or with keys and values that come
    over links (contract C179).
    """
    asked, hardware, loader = parts.workload, parts.hardware, parts.loader
    if asked.requests is not None and hardware.devices is not None:
        raise ValueError(
            "workload.requests does not go with hardware.devices: on which device a prefix is held"
            " is not modelled; set hardware.devices=null"
        )
    if asked.kv_ram_gib and hardware.is_unified:
        raise ValueError(
            f"workload.kv_ram_gib={asked.kv_ram_gib:g}: the RAM of machine {hardware.name} is its"
            " device's memory; hold keys and values there with workload.kv_device_gib"
        )
    if asked.kv_disk_gib and len(hardware.links) == 1:
        raise ValueError(
            f"workload.kv_disk_gib={asked.kv_disk_gib:g}: machine {hardware.name} has no link from a"
            " drive to RAM; choose one that has, such as machine=rtx4090_nvme, or set"
            " workload.kv_disk_gib=0"
        )
    if not moves_kv(parts):
        return
    refused = {
        f"loader.dense_slots={loader.dense_slots}": loader.dense_slots > 0,
        f"payload={type(parts.payload).__name__}": not parts.payload.whole,
        "hardware.links.*.unpack": any(link.unpack is not None for link in hardware.links),
        "hardware.links.*.page_cache": any(link.page_cache is not None for link in hardware.links),
    }
    if wrong := [what for what, is_so in refused.items() if is_so]:
        raise ValueError(
            "workload.kv_ram_gib and workload.kv_disk_gib do not go with"
            f" {', '.join(wrong)}: what they move is told from experts by its bytes; set both to 0"
        )


def _check_lanes(parts: Parts) -> None:
    """Raise ValueError for what does not go with reads or kernels by projection, with engines that
    have a pace of their own, or with swap.
    """
    loader, hardware = parts.loader, parts.hardware
    if hardware.swap is not None and loader.dense_slots:
        raise ValueError(
            f"loader.dense_slots={loader.dense_slots} does not go with hardware.swap, which holds"
            " dense weights; set it to 0, or hardware.swap=null"
        )
    laned = [f"hardware.{word}" for word in hardware.lanes if word.startswith("links.")]
    by_projection = [word for word in laned if ".unit=" in word]
    if loader.wait == "by_projection":
        by_projection.append("loader.wait=by_projection")
    refused = {
        f"loader.chunk_bytes={loader.chunk_bytes}": (laned, loader.chunk_bytes is not None),
        "loader.write_back=True": (by_projection, loader.write_back),
        f"payload={type(parts.payload).__name__}": (by_projection, not parts.payload.whole),
        "hardware.devices": (by_projection, hardware.devices is not None),
        "hardware.beside or shared_memory.slows=as_drawn": (
            by_projection,
            hardware.contention is not None,
        ),
    }
    for other, (words, is_so) in refused.items():
        if words and is_so:
            raise ValueError(
                f"{', '.join(words)} does not go with {other}; leave out one or the other"
            )


def check_drafts(parts: Parts, *, tells_bytes: bool, is_real: bool) -> None:
    """Raise ValueError for what does not go with drafts that offload their experts (contract C186).

    ``tells_bytes``: the trace tells the bytes of its experts. ``is_real``: experts are those of a
    store.
    """
    if not parts.model.draft_sites:
        return
    fitted = [
        f"{section} {type(policy).__name__} (nothing is fitted on a draft layer)"
        for section, policy in parts.policies().items()
        if policy.requires.fit is not None or policy.requires.gate_inputs
    ]
    refused = {
        "an encoder-decoder model": parts.model.encoder_sites > 0,
        f"loader.dense_slots={parts.loader.dense_slots}": parts.loader.dense_slots > 0,
        "hardware.devices": parts.hardware.devices is not None,
        ", ".join(fitted): bool(fitted),
        "a trace that tells the bytes of its experts (and of no draft layer's)": tells_bytes,
        "a run on a device": is_real,
    }
    for what, is_so in refused.items():
        if is_so:
            raise ValueError(
                f"workload.draft_experts=offloaded does not go with {what}; leave that out, or set"
                " workload.draft_experts=on_device"
            )


def check_recorded(config: Mapping[str, Any], precision: int | None, workload: Workload) -> None:
    """Raise ValueError where a part would need what the trace's recording left out.

    The trace's header says what that is. ``precision``: the one at which every expert is wanted,
    None where the selector weighs experts.
    """
    header = workload.trace.header
    lacks = header.lacks
    told = f"trace {header.name} ({header.provenance.get('format')}) does not tell"
    if precision is None and lacks & {"weights", "rows"}:
        what = "gate weights" if "weights" in lacks else "which token of a batch chose which expert"
        raise ValueError(
            f"{told} {what}, which precision weighs experts by; choose precision=fp16 or another"
            " fixed one"
        )
    if workload.batching != "recorded" and lacks & {"rows", "sequences"}:
        what = (
            "which sequence a token belongs to"
            if "sequences" in lacks
            else "which token chose which expert"
        )
        raise ValueError(
            f"{told} {what}, so workload.batching={workload.batching} cannot compose its steps;"
            " choose workload=recorded, its own steps"
        )
    if header.prefill == "counts":
        _check_counts(header.name, config, precision, workload)
    if "rows" in lacks and config["cache"].get("recency") == "rows":
        raise ValueError(f"{told} which token chose which expert; choose cache.recency=needs")
    if (
        "weights" in lacks
        and not header.stands_in_order
        and config["cache"].get("recency") == "rows"
    ):
        raise ValueError(
            f"{told} the rank of a token's experts, which cache.recency=rows goes by; choose"
            " cache.recency=needs, or import it again with order=rank if its experts stand in that"
            " order"
        )


def _check_counts(
    name: str, config: Mapping[str, Any], precision: int | None, workload: Workload
) -> None:
    """Raise ValueError where a part would need single rows of prompts; the trace keeps only
    counts of them.
    """
    told = f"trace {name} keeps prompts as counts of tokens, not"
    if precision is None:
        raise ValueError(
            f"{told} each token's weights, which precision goes by; choose precision=fp16 or"
            " another fixed one, or capture with prefill=rows"
        )
    if workload.prefill_chunk is not None:
        raise ValueError(f"{told} which token chose which expert; set workload.prefill_chunk=null")
    if config["cache"].get("recency") == "rows":
        raise ValueError(f"{told} which token chose which expert; choose cache.recency=needs")


def check_changed(hardware: Hardware, changed: Iterable[str]) -> None:
    """Raise ValueError for a word about a link whose services take measured times instead (C141)."""
    measured = hardware.measured.copy_us if hardware.measured is not None else {}
    for word in changed:
        section, _, figure = word.lstrip("+~").partition("=")[0].rpartition(".")
        if figure in FIGURES and section.removeprefix("hardware.links.") in measured:
            raise ValueError(
                f"{word} would change nothing: on {hardware.name} a service of this link takes the"
                " time that was measured (hardware.measured.copy_us); with the word"
                " ~hardware.measured.copy_us the link's own figures count"
            )


def check_ram_cache(system: str, hardware: Hardware) -> None:
    """Raise ValueError for a policy of RAM where there is none to manage. ``system``: the run's
    name, with every mechanism that its words replace.
    """
    said = [
        word
        for word in system.split()
        if word.lstrip("+~").startswith(("ram_cache=", "ram_cache."))
    ]
    if said and hardware.ram is None:
        raise ValueError(
            f"{said[0]} would change nothing: machine {hardware.name} has no managed RAM"
            " (hardware.ram); leave it out, or choose a machine that has one, such as"
            " hardware=rtx4090_nvme"
        )


class CpuError(ValueError):
    """No CPU can compute what the run's placement may leave to one."""


def check_parts(parts: Parts, workload: Workload) -> None:
    """Raise ValueError for parts that do not go together."""
    hardware = parts.hardware
    if parts.placement.uses_cpu and hardware.cpu is None:
        raise CpuError(
            f"this placement may compute experts on the CPU, but hardware {hardware.name} has no"
            " cpu section; choose placement=load, or a machine whose file has one"
        )
    kept = [link.name for link in hardware.links if link.page_cache is not None]
    if kept and parts.loader.chunk_bytes is not None:
        raise ValueError(
            f"loader.chunk_bytes={parts.loader.chunk_bytes} does not go with"
            f" hardware.links.{kept[0]}.page_cache: what is kept of a read that was cut is not"
            " modelled; set one of them to null"
        )
    if parts.loader.write_back and hardware.is_unified:
        raise ValueError(
            f"loader.write_back=true: {hardware.links[-1].name} of {hardware.name} begins at a drive,"
            " which has every expert already, so that nobody writes one back; set"
            " loader.write_back=false"
        )
    _check_unpacking(parts)
    _check_kernels(parts)
    _check_lanes(parts)
    _check_kv(parts)
    encoders = parts.model.encoder_sites, workload.trace.header.encoder_sites
    if encoders[0] != encoders[1]:
        raise ValueError(
            f"model {parts.model.name} has its first {encoders[0]} sites in an encoder, but trace"
            f" {workload.trace.header.name} {encoders[1]}; choose a model that goes with it, or set"
            " model.encoder_sites"
        )
    if parts.loader.dense_slots and workload.trace.header.encoder_sites:
        raise ValueError(
            f"loader.dense_slots={parts.loader.dense_slots}: dense blocks of an encoder-decoder"
            " model are not streamed; set loader.dense_slots=0"
        )
    for section, policy in parts.policies().items():
        _check_required(section, policy, workload)


def check_cpu_reach(parts: Parts, geometry: Geometry) -> None:
    """Raise ValueError where the CPU may compute experts that lie on a drive: nothing here reads them
    for it, so they would cost no more than those in memory.

    A drive is behind a managed RAM, or behind the memory that the device shares with its link.
    """
    hardware, last = parts.hardware, parts.hardware.links[-1].name
    if not parts.placement.uses_cpu or (len(hardware.links) < 2 and not hardware.is_unified):
        return
    keys = (
        geometry.key(0, site, expert)
        for site in range(geometry.sites)
        for expert in range(geometry.experts)
    )
    every = sum(geometry.bytes_of(key) for key in keys if key not in geometry.missing)
    if every > max(geometry.capacity_bytes, hardware.route.ram_bytes):
        raise CpuError(
            "this placement may compute experts on the CPU, but neither the device's slots nor RAM hold"
            f" all {every / GIB:.3g} GiB of them, and the rest lies beyond {last}: reading it for the"
            " CPU is not modelled; choose placement=load, fewer bits (precision=), more slots (budget)"
            " or more RAM"
        )


def _check_required(section: str, policy: Policy, workload: Workload) -> None:
    """Raise ValueError for what a policy requires of the run and the run cannot give."""
    requires, trace = policy.requires, workload.trace
    name = f"{section} {type(policy).__name__}"
    if requires.active_shares and trace.active_shares is None:
        raise ValueError(
            f"trace {trace.header.name} records no active shares of experts' channels, which"
            f" {name} goes by; capture it with them, or choose payload=active_share_nominal"
        )
    if requires.preferences:
        _check_preferences(trace)
    if requires.row_scores not in (None, workload.norm):
        raise ValueError(
            f"workload.lookahead_norm={workload.norm}: {name} was made for {requires.row_scores}"
            f" scores; set workload.lookahead_norm={requires.row_scores}"
        )
    if requires.future and section == "ram_cache":
        raise ValueError(
            f"{name} cannot know what will be missing on the device; choose ram_cache=lru"
        )
    if requires.future and workload.is_timed:
        raise ValueError(
            f"{name} knows the future only where steps do not depend on time; {NO_ARRIVALS}"
        )


def _check_preferences(trace: Trace) -> None:
    """Raise ValueError unless a trace has logits, and a routing rule for every site."""
    without = [site.site for site in trace.header.sites if site.rule is None]
    if trace.logits is None or without:
        what = "no logits" if trace.logits is None else f"no routing rule of sites {without}"
        raise ValueError(
            f"trace {trace.header.name} has {what}, by which this gate chooses among the experts in"
            " memory; capture it with logits, or choose another precision (precision=fp16"
            " placement=skip_absent leaves absent ones out)"
        )
