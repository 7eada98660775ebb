"""What tests of several folders share beside fixtures: the bundled trace, and what composes a
configuration.
"""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

BUNDLED = "capture/assets/traces/tiny_mixtral"
Configure = Callable[..., DictConfig]
