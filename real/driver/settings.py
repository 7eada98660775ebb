"""What ``python -m real`` is told beside a simulated run's configuration, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.values.units import require_flag, require_number

INPUTS = ("replay", "live")
CHOICES = {
    "links": ("paced", "free"),
    "compute": ("padded", "free"),
    "source": ("ram", "buffered", "direct", "mmap"),
    "dtype": ("float32", "bfloat16", "float16"),
    "gather": ("staged", "zero_copy"),
}


@dataclass(frozen=True)
class Engine:
    """How a device runs: its section of the configuration.

    ``source``: how the store is read (``ram``: it rests in memory; ``direct``: past the page cache;
    ``mmap``: by page faults). ``cold``: forget what the page cache holds of it before the run.
    ``stand_in_gib``: the most that a stand-in may take on disk. ``weights``: a checkpoint's folder,
    ``stand_in``, or None for the bundled model of that name, and a stand-in where there is none.
    ``gather``: how a GPU's loader gathers the neurons of a partial move: ``staged``, by
    ``gather_threads``, each into pinned buffers and a stream of its own, ``gather_columns`` at a
    time; or ``zero_copy``, by a kernel that reads them from pinned memory, ``gather_columns`` a
    program.
    """

    links: str = "paced"
    compute: str = "padded"
    source: str = "ram"
    cold: bool = False
    weights: str | None = None
    store_dir: str = "outputs/stores"
    stand_in_gib: float = 1.0
    dtype: str = "float32"
    patience_s: float = 30.0
    gather: str = "staged"
    gather_threads: int = 4
    gather_columns: int = 50

    def __post_init__(self) -> None:
        for name, values in CHOICES.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"unknown engine.{name}={getattr(self, name)}; allowed: {', '.join(values)}"
                )
        require_flag("engine.cold", self.cold)
        for name in ("gather_threads", "gather_columns"):
            require_number(f"engine.{name}", getattr(self, name), minimum=1, whole=True)
        for name in ("stand_in_gib", "patience_s"):
            require_number(f"engine.{name}", getattr(self, name))
            if not getattr(self, name) > 0:
                raise ValueError(f"engine.{name}={getattr(self, name)} must be above 0")


@dataclass(frozen=True)
class Live:
    """What a live run reads and writes: ``sequences`` of one ``split`` of ``prompts`` (a file of
    JSON lines, or a bundled set), each fed ``new_tokens`` after a prompt of ``prompt_tokens``: its
    own most likely ones (``greedy``; the end-of-text token does not end it), or the text's
    (``document``). Lengths are one for all, or ``[least, most]``, of which each sequence draws its
    own, seeded.
    """

    prompts: str = "heldout"
    split: str = "eval"
    sequences: int = 2
    prompt_tokens: int | Sequence[int] = 32
    new_tokens: int | Sequence[int] = 32
    continuation: str = "greedy"

    def lengths(self) -> list[tuple[int, int]]:
        """Of each sequence, how many tokens its prompt has, and how many follow."""
        draw = np.random.default_rng(0)
        spans = [
            (each, each) if isinstance(each, int) else each
            for each in (self.prompt_tokens, self.new_tokens)
        ]
        drawn = [draw.integers(least, most + 1, self.sequences).tolist() for least, most in spans]
        return list(zip(*drawn, strict=True))

    def __post_init__(self) -> None:
        if self.split not in ("fit", "eval"):
            raise ValueError(f"live.split={self.split} must be fit or eval")
        if self.continuation not in ("greedy", "document"):
            raise ValueError(f"live.continuation={self.continuation} must be greedy or document")
        require_number("live.sequences", self.sequences, minimum=1, whole=True)
        for name in ("prompt_tokens", "new_tokens"):
            value = getattr(self, name)
            for number in value if isinstance(value, list) else [value]:
                require_number(f"live.{name}", number, minimum=1, whole=True)
            if isinstance(value, list) and (len(value) != 2 or value[0] > value[1]):
                raise ValueError(f"live.{name}={value} must be a number, or [least, most]")
