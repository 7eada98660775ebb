"""llama.cpp's flags as words of a run, and back (contract C154).

Sources, read: ggml-org/llama.cpp, ``tools/server/README.md`` (names, defaults) and
``common/arg.cpp`` (patterns are pushed in the order of the flags).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sim.answers.graph_memory import graph_bytes, window_bytes
from sim.machine.model import Model
from sim.policies.tensor_overrides import EXPERTS
from sim.results.run import Run
from sim.setup.configure import group_of
from sim.study.trials import prepared
from sim.values.units import GIB, MIB
from sim.verbs.names import nearest

MICRO_BATCH, BATCH = 512, 2048
"""llama.cpp's ``-ub`` and ``-b``, where nothing is said. A micro-batch is at most a batch
(``src/llama-context.cpp``).
"""
KV_BITS = {
    "f32": 32.0,
    "f16": 16.0,
    "bf16": 16.0,
    "q8_0": 8.5,
    "q5_1": 6.0,
    "q5_0": 5.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
    "iq4_nl": 4.5,
}
"""Bits of a number by ``-ctk`` and ``-ctv``: blocks of 32 with their scales (ggml)."""
NAMES = {
    "context": ("-c", "--ctx-size"),
    "parallel": ("-np", "--parallel"),
    "keys": ("-ctk", "--cache-type-k"),
    "values": ("-ctv", "--cache-type-v"),
    "micro_batch": ("-ub", "--ubatch-size"),
    "n_cpu_moe": ("-ncmoe", "--n-cpu-moe"),
    "cpu_moe": ("-cmoe", "--cpu-moe"),
    "overrides": ("-ot", "--override-tensor"),
    "cache_mib": ("--moe-cache-mib",),
    "gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers"),
    "split": ("-ts", "--tensor-split"),
    "split_mode": ("-sm", "--split-mode"),
    "batch": ("-b", "--batch-size"),
    "flash": ("-fa", "--flash-attn"),
    "nothing": ("-m", "--model"),
}
REFUSED = {
    ("-mg", "--main-gpu"): "the first GPU has what is of no layer",
    ("-nkvo", "--no-kv-offload"): "keys and values lie on the GPU here",
    ("-t", "--threads"): "the machine's file says what its CPU does (hardware.cpu)",
    ("-kvu", "--kv-unified"): "each of -np sequences has its own part of -c here",
    ("--swa-full",): (
        "layers with a window keep the window here; ++model.windows=[] keeps and reads all"
    ),
    ("--moe-expert-cache", "--moe-expert-cache-inserts"): (
        "it is of a pull request; the engine's own is --moe-cache-mib, that of the pull request"
        " system=llama_cpp_cache_cpu"
    ),
    ("--draft-max", "--spec-draft-n-max"): (
        "how often drafts are right is not told by it; say workload=mtp_4 workload.draft_tokens=N"
    ),
}
FLASH = {
    True: ("on", "enabled", "true", "1", "auto", "-1"),
    False: ("off", "disabled", "false", "0"),
}
"""The values of ``-fa``. ``auto`` is on where values are quantised (``src/llama-context.cpp``)."""
STATE_BITS = 32
"""Bits of an activation that crosses to another GPU."""
RESERVED = "hardware.reserved_gib"
OWNED = ("system", "cache", "placement", "loader", "budget")
"""What the flags choose, and no other word may."""
SAID = {
    "workload.context_tokens": "-c",
    "workload.together": "-np",
    "workload.prefill_chunk": f"-ub and -b, {MICRO_BATCH} without them",
    "model.kv_bits": "-ctk and -ctv, f16 without them",
    "hardware.devices.shares": "-ts",
}
"""What flags say, and by which flag. A word that says it, too, would put the flag aside."""
_BY_NAME = {name: meaning for meaning, names in NAMES.items() for name in names}
_WHY_NOT = {name: why for names, why in REFUSED.items() for name in names}


@dataclass(frozen=True)
class Flags:
    """What a line of flags says.

    ``patterns`` are those of ``-ot``, and of ``--n-cpu-moe`` where a later ``-ot`` must not come
    before it. ``n_cpu_moe`` counts after all patterns. ``context`` is that of all ``parallel``
    sequences together; None: the trace's own. ``cache_mib``: the GPU cache of experts. ``split``
    has a number for each GPU, in the proportion of which they have layers; () for one GPU.
    ``flash``: attention does not keep its scores.
    """

    context: int | None = None
    parallel: int = 1
    keys: str = "f16"
    values: str = "f16"
    micro_batch: int = MICRO_BATCH
    n_cpu_moe: int = 0
    patterns: tuple[str, ...] = ()
    cache_mib: int = 0
    split: tuple[float, ...] = ()
    flash: bool = True

    def line(self) -> str:
        """The flags as they are typed, with ``-ngl all``."""
        words = ["-ngl", "all"]
        if self.context is not None:
            words += ["-c", str(self.context)]
        if self.parallel > 1:
            words += ["-np", str(self.parallel)]
        for flag, kind in (("-ctk", self.keys), ("-ctv", self.values)):
            words += [flag, kind] if kind != "f16" else []
        if self.micro_batch != MICRO_BATCH:
            words += ["-ub", str(self.micro_batch)]
        if self.micro_batch > BATCH:
            words += ["-b", str(self.micro_batch)]
        if self.split:
            words += ["-ts", ",".join(map(_typed, self.split))]
        for pattern in self.patterns:
            words += ["-ot", pattern]
        if self.n_cpu_moe:
            words += ["--n-cpu-moe", str(self.n_cpu_moe)]
        if self.cache_mib:
            words += ["--moe-cache-mib", str(self.cache_mib)]
        if not self.flash:
            words += ["-fa", "off"]
        return shlex.join(words)


def read_flags(text: str) -> Flags:
    """The flags in ``text``, which is split as a shell splits it.

    Raise ValueError, with the nearest name, for a flag that is not known, for one that means
    nothing a run can do, and for a value that it does not take.
    """
    try:
        left = iter(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"flags={text!r}: {error}") from None
    found: dict[str, Any] = {}
    patterns: list[str] = []
    for name in left:
        meaning = _meaning(name)
        if meaning == "cpu_moe":
            patterns.append("exps=CPU")
            continue
        value = next(left, None)
        if value is None or value in _BY_NAME:
            # Older versions had -fa without one.
            raise ValueError(f"flags: {name} needs a value")
        if meaning == "overrides":
            if first := found.pop("n_cpu_moe", 0):
                patterns.append(on_host(range(int(first))))
            patterns += map(_pattern, value.split(","))
        elif meaning in ("keys", "values"):
            if value not in KV_BITS:
                raise ValueError(f"flags: {name} {value} is none of {', '.join(KV_BITS)}")
            found[meaning] = value
        elif meaning == "flash":
            found[meaning] = _flash(name, value)
        elif meaning == "gpu_layers":
            _check_layers(name, value)
        elif meaning == "split":
            found[meaning] = _split(name, value)
        elif meaning == "split_mode":
            _check_mode(name, value)
        elif meaning == "n_cpu_moe":
            # Each one adds its layers to those before.
            found[meaning] = max(_whole(name, value, 0), found.get(meaning, 0))
        elif meaning != "nothing":
            found[meaning] = _whole(name, value, 0 if meaning == "cache_mib" else 1)
    _check_flash(found.get("flash", True), found.get("values", "f16"))
    found["micro_batch"] = min(found.get("micro_batch", MICRO_BATCH), found.pop("batch", BATCH))
    return Flags(patterns=tuple(patterns), **found)


def _meaning(name: str) -> str:
    if why := _WHY_NOT.get(name):
        raise ValueError(f"flags: {name} is not modelled: {why}")
    if name not in _BY_NAME:
        raise ValueError(
            f"flags: {name!r} is no flag that is known here{nearest(name, _BY_NAME)}; known:"
            f" {', '.join(_BY_NAME)}"
        )
    return _BY_NAME[name]


def _whole(name: str, value: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,12}", value) or int(value) < least:
        raise ValueError(f"flags: {name} {value} must be a whole number from {least} on")
    return int(value)


def _flash(name: str, value: str) -> bool:
    """Whether flash attention is on."""
    for is_on, words in FLASH.items():
        if value in words:
            return is_on
    raise ValueError(f"flags: {name} {value} is none of on, off, auto")


def _check_flash(is_on: bool, values: str) -> None:
    """Raise ValueError for quantised values without flash attention, as llama.cpp does."""
    if not is_on and KV_BITS[values] < 16:
        raise ValueError(
            f"flags: -ctv {values} needs flash attention, and -fa off turns it off: llama.cpp starts"
            " with no such line; leave out one of them"
        )


def _check_layers(name: str, value: str) -> None:
    if value not in ("all", "auto") and not (value.isdecimal() and int(value) >= 99):
        raise ValueError(
            f"flags: {name} {value}: every layer's attention is on the GPU here; say all, or 99, and"
            " --n-cpu-moe for experts"
        )


def _split(name: str, value: str) -> tuple[float, ...]:
    """The number of each GPU. llama.cpp takes a slash for a comma, too."""
    words = re.split(r"[,/]", value)
    if not all(re.fullmatch(r"\d{1,6}(\.\d{1,6})?", word) and float(word) > 0 for word in words):
        raise ValueError(
            f"flags: {name} {value} must have a number above 0 for each GPU, as in {name} 3,1;"
            " leave out a GPU that has no layer"
        )
    return tuple(map(float, words)) if words[1:] else ()


def _typed(share: float) -> str:
    """A number of ``-ts``, with as many digits as it may have."""
    return f"{share:.6f}".rstrip("0").rstrip(".")


def _check_mode(name: str, value: str) -> None:
    if value != "layer":
        raise ValueError(
            f"flags: {name} {value} is not modelled: GPUs that split every matrix have no CPU that"
            f" computes beside them here, and one GPU needs no flag; say {name} layer"
        )


def _pattern(text: str) -> str:
    if "'" in text or "${" in text:
        raise ValueError(f"flags: -ot {text}: a pattern with ' or ${{ cannot be passed on")
    return text


def on_host(layers: Iterable[int]) -> str:
    """The pattern of ``-ot`` that leaves the experts of these layers on the CPU."""
    return rf"blk\.({'|'.join(map(str, sorted(layers)))}){EXPERTS}=CPU"


def words_of(flags: Flags, given: Sequence[str]) -> list[str]:
    """The overrides that make a run of these flags, and then the ``given`` ones.

    Raise ValueError for given words that choose what the flags choose, and where the layers that
    the flags put on the GPU cannot be there.
    """
    if taken := [word for word in given if group_of(word) in OWNED]:
        raise ValueError(
            f"flags choose {', '.join(OWNED)}, so {taken[0]} does not go with them; leave one out"
        )
    made = [*_workload(flags), *_gpus(flags, given)]
    _check_said_once(made, given)
    shared = [*made, *given]
    layers = ["system=llama_cpp_n_cpu_moe", *_quotas(flags, "cache")]
    # Of a budget of all bytes the layers' own pools took what they need; that is the budget then.
    whole = prepared([*layers, "budget.resident_share=1", *shared])
    _check_kinds(flags, whole.model)
    if flags.cache_mib:
        layers = ["system=llama_cpp_cache", *_quotas(flags, "cache.cache")]
    slots_gib = max(1, whole.ledger.slot_bytes + flags.cache_mib * MIB) / GIB
    # Prompts attend to compressed keys and values, too (build_deepseek2: multi-query attention).
    attention = ["++model.latent.unfolds=false"] if whole.model.latent is not None else []
    reserved = _reserved(flags, whole, given)
    return [*layers, f"budget.slots_gib={slots_gib!r}", *reserved, *attention, *shared]


def _reserved(flags: Flags, run: Run, given: Sequence[str]) -> Iterator[str]:
    """What the engine sets aside for a micro-batch, beyond the ledger's staging, activations and
    windows.
    """
    if any(_key(word) == RESERVED for word in given):
        return
    ledger, most = run.ledger, flags.micro_batch
    context = (flags.context or run.workload.limits.tokens) // flags.parallel
    rows = min(most, flags.context or most)
    staged_bytes = ledger.staging_bytes
    taken = graph_bytes(run.model, rows, context, staged_bytes=staged_bytes, flash=flags.flash)
    beyond = max(0, taken - staged_bytes - ledger.activation_bytes)
    beyond += flags.parallel * window_bytes(run.model, most, context)
    if beyond:
        yield f"{RESERVED}={run.hardware.reserved_gib + beyond / GIB!r}"


def _check_kinds(flags: Flags, model: Model) -> None:
    """Raise ValueError for keys and values of two types where the model caches them as one, as
    llama.cpp does (``src/llama-context.cpp``).
    """
    if model.latent is not None and flags.keys != flags.values:
        raise ValueError(
            f"flags: -ctk {flags.keys} -ctv {flags.values}: {model.name} caches keys and values as"
            " one compressed vector, of which llama.cpp takes one type only; say the same for both"
        )


def _check_said_once(made: Sequence[str], given: Sequence[str]) -> None:
    """Raise ValueError for a given word that says what the words ``made`` of flags say."""
    said = {"model.kv_bits", *map(_key, made)} & SAID.keys()
    if twice := [word for word in given if _key(word) in said]:
        key = _key(twice[0])
        raise ValueError(
            f"flags say {key} ({SAID[key]}), so {twice[0]} does not go with them; leave it out, or"
            " say it by that flag (context=, kv= of moelab export)"
        )


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _gpus(flags: Flags, given: Sequence[str]) -> Iterator[str]:
    """The machine's GPUs as ``-ts`` splits layers between them (contract C157)."""
    if not flags.split:
        return
    if not any(group_of(word) == "devices" for word in given):
        yield "devices=layers_2"
        yield f"hardware.devices.count={len(flags.split)}"
        yield f"hardware.devices.state_bits={STATE_BITS}"
    shares = ",".join(map(_typed, flags.split))
    yield f"hardware.devices.shares=[{shares}]"


def _workload(flags: Flags) -> Iterator[str]:
    if flags.parallel > 1:
        yield "workload=continuous_4"
        yield f"workload.together={flags.parallel}"
    yield f"workload.prefill_chunk={flags.micro_batch}"
    if flags.context is not None:
        if flags.context < flags.parallel:
            raise ValueError(f"flags: -c {flags.context} is less than a token for each of -np")
        yield f"workload.context_tokens={flags.context // flags.parallel}"
    if (flags.keys, flags.values) != ("f16", "f16"):
        yield f"++model.kv_bits={(KV_BITS[flags.keys] + KV_BITS[flags.values]) / 2:g}"


def _quotas(flags: Flags, cache: str) -> list[str]:
    words = [f"{cache}.quotas.n_cpu_moe={flags.n_cpu_moe}"]
    if flags.patterns:
        patterns = ",".join(f"'{pattern}'" for pattern in flags.patterns)
        words.append(f"{cache}.quotas.overrides=[{patterns}]")
    return words
