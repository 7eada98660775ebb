"""The settings that ``python -m real`` has beyond those of a simulated run, checked."""

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
    """How a device runs: the section ``engine`` of the configuration.

    - ``links``: ``paced`` to the hardware's nominal times, or ``free``, as fast as it goes.
    - ``compute``: ``padded`` to nominal times, or ``free``.
    - ``source``: how the store is read. ``ram``: it rests in memory; ``buffered``: through the page
      cache; ``direct``: past it; ``mmap``: by page faults.
    - ``cold``: drop what the page cache holds of the store before the run.
    - ``weights``: a checkpoint's folder, or ``stand_in``. None: the bundled model of that name,
      or a stand-in where none is bundled.
    - ``stand_in_gib``: the most that a stand-in may take on disk.
    - ``patience_s``: how long nothing may happen before a run is given up.
    - ``gather``: how a GPU's loader gathers the neurons of a partial move. ``staged``:
      ``gather_threads`` threads, each with pinned buffers and a stream of its own, gather
      ``gather_columns`` neurons at a time. ``zero_copy``: a kernel reads them from pinned memory,
      ``gather_columns`` in each program.
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
    """What a live run reads and writes.

    - ``prompts``: a file of JSON lines, or a bundled set, of which one ``split`` is read.
    - ``sequences``: how many sequences run.
    - ``prompt_tokens``, ``new_tokens``: the lengths of prompts and of what follows. One number is
      for all; of ``[least, most]`` each sequence draws its own, with a fixed seed.
    - ``continuation``: what is fed after the prompt. ``greedy``: the model's own most likely
      tokens, past an end-of-text token, too; ``document``: the tokens of the text.
    """

    prompts: str = "heldout"
    split: str = "eval"
    sequences: int = 2
    prompt_tokens: int | Sequence[int] = 32
    new_tokens: int | Sequence[int] = 32
    continuation: str = "greedy"

    def lengths(self) -> list[tuple[int, int]]:
        """By sequence: the tokens of its prompt, and how many tokens follow."""
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
