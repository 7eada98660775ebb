"""Loads a transformers model without its experts' weights: never allocated, never read.

1. A skeleton of the model on the meta device tells which modules are experts.
2. The model is loaded while those modules' classes drop their parameters as soon as they are made.
   So the checkpoint's expert tensors match no parameter and are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig

from capture.models.deepseek_moe import DeepseekMoeForCausalLM, native_config
from capture.models.discover import MoELayer, discover
from capture.recording.load import AUTO_CLASSES, check_model, is_native, load_model
from capture.recording.settings import Settings
from real.store.experts import ModelForm, SwapError
from real.store.swapping import forms_of_layers

_NOTHING: Any = torch.empty(0)
_NOTHING._is_hf_initialized = True


@dataclass(frozen=True)
class Weightless:
    """A model whose experts have no weights, and the forms of its sites, bound to that model."""

    model: Any
    forms: Sequence[ModelForm]

    @property
    def layers(self) -> list[MoELayer]:
        return [form.layer for form in self.forms]


def skeleton(settings: Settings) -> Any:
    """The model on the meta device, in its dtype. Raise `CaptureError` if it cannot be loaded."""
    plain = check_model(settings)
    with torch.device("meta"):
        model = _from_config(settings, plain)
    return model.to(getattr(torch, settings.dtype)).eval()


def _from_config(settings: Settings, plain: Mapping[str, Any]) -> Any:
    if is_native(plain, settings):
        return DeepseekMoeForCausalLM(native_config(plain))
    config = AutoConfig.from_pretrained(
        settings.model, trust_remote_code=settings.trust_remote_code
    )
    for name in AUTO_CLASSES:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            return auto.from_config(config)
    raise SwapError(
        f"{settings.model}: {type(config).__name__} belongs to none of {', '.join(AUTO_CLASSES)}"
    )


def load_weightless(settings: Settings) -> Weightless:
    """Load a model with all but its experts' weights.

    Raise SwapError for experts that nothing but their own module can compute.
    """
    bones = skeleton(settings)
    layers = discover(bones)
    forms = forms_of_layers(layers)
    verbosity = transformers.utils.logging.get_verbosity()
    # transformers would warn of every expert tensor of the checkpoint, as none matches a parameter.
    transformers.utils.logging.set_verbosity_error()
    try:
        with _dropping({type(layer.experts) for layer in layers}):
            model = load_model(settings)
    finally:
        transformers.utils.logging.set_verbosity(verbosity)
    for form in forms:
        form.bind(_in(model, bones, form.layer))
        left = [
            name
            for name, values in form.layer.experts.named_parameters()
            if values.numel() > 1 << 20
        ]
        if left:
            raise SwapError(f"{form.layer.name}: {left} were loaded all the same")
    return Weightless(model, forms)


@contextmanager
def _dropping(classes: set[type[nn.Module]]) -> Iterator[None]:
    """Within the block, modules of these classes lose their parameters as soon as they are made."""
    own = {kind: kind.__init__ for kind in classes}

    def dropping(made: Any) -> Any:
        @wraps(made)
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            listed = isinstance(self, (nn.ModuleDict, nn.ModuleList))
            for module in self.modules() if listed else (self,):
                for name in list(module._parameters):
                    del module._parameters[name]
                    # Initialisation finds an attribute here, and leaves it alone.
                    module.__dict__[name] = _NOTHING
            self._is_hf_initialized = True

        return make

    for kind in classes:
        kind.__init__ = dropping(kind.__init__)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, made in own.items():
            kind.__init__ = made  # type: ignore[method-assign]


def _in(model: Any, bones: Any, layer: MoELayer) -> MoELayer:
    """The same layer in another model of the same structure (``bones`` is the one it is from)."""
    names, modules = (
        {module: name for name, module in bones.named_modules()},
        dict(model.named_modules()),
    )
    fields = ("stack", "owner", "block", "router", "experts")
    return replace(layer, **{field: modules[names[getattr(layer, field)]] for field in fields})
