"""A transformers model without the weights of its experts: they are never allocated, and never
read.

First a skeleton on the meta device tells which modules are experts; then the model is loaded while
these classes drop their parameters as soon as they are made, so that the checkpoint's expert
tensors fit nowhere and are passed over.
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
from real.store.experts import ModelForm, SwapError, forms_of_layers

_NOTHING: Any = torch.empty(0)
_NOTHING._is_hf_initialized = True


@dataclass(frozen=True)
class Weightless:
    """A model whose experts have no weights, and the forms of its sites, bound to it."""

    model: Any
    forms: Sequence[ModelForm]

    @property
    def layers(self) -> list[MoELayer]:
        return [form.layer for form in self.forms]


def skeleton(settings: Settings) -> Any:
    """The model on the meta device, in its dtype. Raise `CaptureError` for what cannot be
    loaded.
    """
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
    """Load a model with everything but its experts' weights. Raise SwapError for experts that
    cannot be swapped.
    """
    bones = skeleton(settings)
    layers = discover(bones)
    forms = forms_of_layers(layers)
    verbosity = transformers.utils.logging.get_verbosity()
    # The expert tensors of the checkpoint fit nowhere, and transformers would list them.
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
    """Modules of these classes lose, as soon as they are made, what holds a weight for each
    expert.
    """
    own = {kind: kind.__init__ for kind in classes}

    def dropping(made: Any) -> Any:
        @wraps(made)
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            listed = isinstance(self, (nn.ModuleDict, nn.ModuleList))
            for module in self.modules() if listed else (self,):
                for name in list(module._parameters):
                    del module._parameters[name]
                    # An attribute that initialisation finds, and leaves alone.
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
    """The same layer in another model of the same structure."""
    names, modules = (
        {module: name for name, module in bones.named_modules()},
        dict(model.named_modules()),
    )
    fields = ("stack", "owner", "block", "router", "experts")
    return replace(layer, **{field: modules[names[getattr(layer, field)]] for field in fields})
