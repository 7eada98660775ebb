"""Names that tests of several folders share: the bundled trace, and a type for configurations."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

BUNDLED = "capture/assets/traces/tiny_mixtral"
Configure = Callable[..., DictConfig]
