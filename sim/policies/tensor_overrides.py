"""Which layers' experts rest on the CPU: llama.cpp's options, as quotas of a cache."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sim.policies.profile import Profile
from sim.values.types import CapacityError, Geometry
from sim.values.units import require_number

TENSORS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
"""The names of a layer's expert tensors in a GGUF file."""
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""How ``--n-cpu-moe`` names a layer's experts, after ``blk.N``."""
OF_LAYER = re.compile(rf"blk\.(\d+){EXPERTS}")
"""The same for all layers at once: a pattern for each would be searched for each."""
HOST = "CPU"
DEVICE = re.compile(r"Metal|[A-Za-z]+(\d{1,2})")
ALL, FEWEST = "all", "fewest"


class TensorOverrides:
    """All experts of a layer are on the device, or none (contract C145).

    ``n_cpu_moe``: those of the model's first so many layers are not, dense layers counted;
    ``fewest``: as few as the budget forces; ``all``: every one. ``overrides`` are patterns
    ``REGEX=BUFFER``, as after ``-ot``: a tensor rests in the buffer of the first one that finds its
    name, ``blk.N.ffn_up_exps.weight`` and so on. They stand before ``n_cpu_moe``. Regular
    expressions are Python's.

    Source: ggml-org/llama.cpp, ``common/arg.cpp`` (``--n-cpu-moe``, ``--override-tensor``) and
    ``src/llama-model-loader.cpp`` (the first match counts).
    """

    needs_profile = False

    def __init__(self, n_cpu_moe: int | str = FEWEST, overrides: Sequence[str] = ()) -> None:
        if n_cpu_moe not in (ALL, FEWEST):
            require_number("cache.quotas.n_cpu_moe", n_cpu_moe, whole=True)
        self.n_cpu_moe = n_cpu_moe
        self.overrides = [_parsed(override) for override in overrides]

    def divide(self, geometry: Geometry, slots: int, profile: Profile | None) -> Sequence[int]:
        """By site all its experts, or 0. Raise CapacityError where ``slots`` are too few."""
        each = geometry.experts - geometry.null_experts
        layers = [geometry.layer_of(site) for site in range(geometry.sites)]
        self._check_found(layers)
        self._check_devices(layers, geometry)
        every = layers[-1] + 1
        if self.n_cpu_moe == FEWEST:
            tried: Sequence[int] = range(every + 1)
        else:
            tried = (every if self.n_cpu_moe == ALL else int(self.n_cpu_moe),)
        for first in tried:
            quotas = [0 if self._on_host(layer, first) else each for layer in layers]
            if sum(quotas) <= slots:
                return quotas
        raise CapacityError(
            f"cache.quotas put {sum(map(bool, quotas))} of {geometry.sites} layers of experts on"
            f" the device, which take {sum(quotas)} slots, but the budget holds {slots}; raise"
            f" cache.quotas.n_cpu_moe (it is {self.n_cpu_moe}) or change cache.quotas.overrides"
        )

    def _check_found(self, layers: Sequence[int]) -> None:
        """Raise ValueError for a pattern that finds no expert tensor of these layers."""
        names = [f"blk.{layer}.{name}.weight" for layer in layers for name in TENSORS]
        for pattern, buffer in self.overrides:
            if not any(map(pattern.search, names)):
                raise ValueError(
                    f"cache.quotas.overrides: {pattern.pattern}={buffer} finds no tensor of experts"
                    f" ({names[0]} to {names[-1]}); mend it, or leave it out if it is of other"
                    " tensors"
                )

    def _check_devices(self, layers: Sequence[int], geometry: Geometry) -> None:
        """Raise ValueError where a pattern puts experts on another device than their layer's."""
        for site, layer in enumerate(layers):
            mine = geometry.on_device(geometry.key(0, site, 0))
            for name in TENSORS:
                buffer = self._buffer(f"blk.{layer}.{name}.weight")
                if buffer not in (None, HOST) and _number(buffer) != mine:
                    raise ValueError(
                        f"cache.quotas.overrides put {name} of layer {layer} on {buffer}, but the"
                        f" layer is on device {mine}; here a layer is whole on one device: change"
                        " the pattern, or the layers that each device has (-ts,"
                        " hardware.devices.shares)"
                    )

    def _on_host(self, layer: int, first: int) -> bool:
        """Whether the layer's experts rest on the CPU. Raise ValueError where only some do."""
        found = {name: self._rests_on_host(f"blk.{layer}.{name}.weight", first) for name in TENSORS}
        if len(set(found.values())) > 1:
            where = ", ".join(
                f"{name} {'on the CPU' if host else 'on the device'}"
                for name, host in found.items()
            )
            raise ValueError(
                f"cache.quotas.overrides split the experts of layer {layer}: {where}; here an"
                " expert is moved and computed whole, so name all three, as in"
                r" 'blk\.(0|1)\.ffn_(gate|up|down)_exps=CPU'"
            )
        return found[TENSORS[0]]

    def _buffer(self, tensor: str) -> str | None:
        """Where the first pattern that finds a tensor puts it; None where none does."""
        return next((buffer for pattern, buffer in self.overrides if pattern.search(tensor)), None)

    def _rests_on_host(self, tensor: str, first: int) -> bool:
        if (buffer := self._buffer(tensor)) is not None:
            return buffer == HOST
        found = OF_LAYER.search(tensor)
        return found is not None and int(found[1]) < first


def _number(buffer: str) -> int:
    """The number of the device that has a buffer."""
    found = DEVICE.fullmatch(buffer)
    return int(found[1] or 0) if found else 0


def _parsed(override: str) -> tuple[re.Pattern[str], str]:
    regex, equals, buffer = str(override).partition("=")
    known = buffer == HOST or DEVICE.fullmatch(buffer)
    if not regex or not equals or not known:
        raise ValueError(
            f"cache.quotas.overrides: {override!r} must be REGEX=BUFFER, where BUFFER is {HOST} or"
            " a device (CUDA0, CUDA1, Vulkan0, Metal, ..), as in 'blk\\.0\\.ffn_.*_exps=CPU'"
        )
    try:
        return re.compile(regex), buffer
    except re.error as error:
        raise ValueError(
            f"cache.quotas.overrides: {regex!r} is no regular expression: {error}"
        ) from None
