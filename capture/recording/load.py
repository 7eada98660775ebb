"""Loads the model and the tokenizer that a capture names, or says why it cannot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

from capture.models.deepseek_moe import MODEL_TYPE, DeepseekMoeForCausalLM, native_config
from capture.models.discover import CaptureError
from capture.recording.settings import Settings
from sim.traces.header import Header

# Tried in this order: models that can continue a text, then towers without a head.
AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText",
    "AutoModel",
)

UNKNOWN_WEIGHTS = "unknown"
_FAILURES = (OSError, ValueError, RuntimeError, KeyError, ImportError)


def check_model(settings: Settings) -> dict[str, Any]:
    """The model's ``config.json``. Raise `CaptureError` if there is none."""
    # Otherwise transformers would look for a misspelt path on the hub, with retries.
    if not Path(settings.model).is_dir() and settings.model.count("/") != 1:
        raise CaptureError(
            f"model={settings.model} is no directory; give one, or OWNER/NAME for a model on"
            " the hub"
        )
    try:
        plain, _ = transformers.PretrainedConfig.get_config_dict(settings.model)
    except _FAILURES as error:
        where = (
            ""
            if Path(settings.model).exists()
            else "there is no such folder here, and on the hub: "
        )
        raise CaptureError(
            f"model={settings.model} cannot be loaded: {where}{_reason(error)}"
        ) from None
    if not plain:
        raise CaptureError(f"model={settings.model} cannot be loaded: it has no config.json")
    return dict(plain)


def load_model(settings: Settings) -> Any:
    """The model in evaluation mode, with the experts' implementation that the settings name.

    Raise `CaptureError` if it cannot be loaded, lacks weights, or does not have that implementation.
    """
    plain = check_model(settings)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(settings.seed)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        model, loaded = _from_pretrained(settings, plain)
        model = model.to(settings.device)
    except (*_FAILURES, AssertionError) as error:
        raise CaptureError(
            f"model={settings.model} cannot be loaded on {settings.device}: {_reason(error)}"
        ) from None
    _check_weights(settings.model, type(model).__name__, loaded["missing_keys"])
    if hasattr(model, "set_experts_implementation"):
        try:
            model.set_experts_implementation(settings.experts_implementation)
        except ValueError as error:
            raise CaptureError(
                f"experts_implementation={settings.experts_implementation}: {_reason(error)}"
            ) from None
    return model.eval()


def _check_weights(model: str, kind: str, missing: Collection[str]) -> None:
    """Raise `CaptureError` for weights that the checkpoint lacks: transformers makes random ones."""
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CaptureError(
            f"model={model} lacks weights of {kind}, which would be random:"
            f" {', '.join(sorted(missing)[:3])}{more}; give a complete checkpoint of this class"
        )


def _reason(error: Exception) -> str:
    told = str(error).strip().split("\n")[0]
    return f"{told} Set trust_remote_code=yes to run it." if "custom code" in told else told


def _from_pretrained(settings: Settings, plain: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of its weights."""
    given = {
        "output_loading_info": True,
        "dtype": getattr(torch, settings.dtype),
        "trust_remote_code": settings.trust_remote_code,
    }
    if is_native(plain, settings):
        config = native_config(plain)
        del given["trust_remote_code"]
        return DeepseekMoeForCausalLM.from_pretrained(settings.model, config=config, **given)  # type: ignore[no-any-return]
    config = AutoConfig.from_pretrained(
        settings.model, trust_remote_code=settings.trust_remote_code
    )
    for name in AUTO_CLASSES:
        auto = getattr(transformers, name)
        remote = name in getattr(config, "auto_map", {}) and settings.trust_remote_code
        if remote or type(config) in auto._model_mapping:
            return auto.from_pretrained(settings.model, config=config, **given)  # type: ignore[no-any-return]
    raise ValueError(f"{type(config).__name__} belongs to none of {', '.join(AUTO_CLASSES)}")


def is_native(plain: Mapping[str, Any], settings: Settings) -> bool:
    """Whether the model runs on this project's own class, `DeepseekMoeForCausalLM`.

    Only remote code knows its type, and the settings do not trust remote code.
    """
    return plain.get("model_type") == MODEL_TYPE and not settings.trust_remote_code


def implementation_of(model: Any) -> str:
    """Name of the experts' implementation; "own" where the model's class leaves no choice."""
    return str(getattr(model.config, "_experts_implementation", None) or "own")


def load_tokenizer(settings: Settings) -> Any:
    """The model's tokenizer. Raise `CaptureError` if none can be loaded."""
    plain = check_model(settings)
    given: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    if is_native(plain, settings):
        given["config"] = native_config(plain)
    try:
        return AutoTokenizer.from_pretrained(settings.model, **given)
    except _FAILURES as error:
        raise CaptureError(
            f"model={settings.model} has no tokenizer that loads: {_reason(error)}"
        ) from None


def chat_wrapper(tokenizer: Any) -> Callable[[Sequence[int]], list[int]] | None:
    """A function that puts a user's message, in tokens, into the tokenizer's chat template.

    None if the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None

    def wrap(tokens: Sequence[int]) -> list[int]:
        message = {
            "role": "user",
            "content": tokenizer.decode(list(tokens), skip_special_tokens=True),
        }
        wrapped = tokenizer.apply_chat_template(
            [message], add_generation_prompt=True, tokenize=False
        )
        # The template has written the special tokens already.
        return list(tokenizer(wrapped, add_special_tokens=False)["input_ids"])

    return wrap


def weights_sha256(model: str) -> str:
    """SHA-256 over the digests of the model's .safetensors files, in order of name.

    `UNKNOWN_WEIGHTS` for a model that is no local directory or has no such files.
    """
    directory = Path(model)
    files = sorted(directory.glob("*.safetensors")) if directory.is_dir() else []
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest() if files else UNKNOWN_WEIGHTS


def require_weights(word: str, place: str, header: Header) -> None:
    """Raise `CaptureError` where the weights at ``place``, which ``word`` names, are known not to be
    those that the trace was captured from.
    """
    recorded = str(header.provenance.get("weights_sha256", UNKNOWN_WEIGHTS))
    found = weights_sha256(place)
    if UNKNOWN_WEIGHTS not in (recorded, found) and recorded != found:
        raise CaptureError(
            f"{word}={place} have sha256 {found[:12]}, but trace {header.name} was captured from"
            f" {recorded[:12]}; name those, or capture these (moelab capture)"
        )
