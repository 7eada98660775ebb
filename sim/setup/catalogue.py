"""``python -m sim list systems|models|machines|traces|workloads``: a table of the files in
``conf/``, one line each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from sim.machine.hardware import Hardware
from sim.machine.model import Model
from sim.setup.build import trace_directory
from sim.setup.choices import WorkloadChoice
from sim.setup.parts import with_whole
from sim.setup.sections import make_object
from sim.traces.header import parse_header
from sim.values.places import CONF
from sim.values.units import GIB

Row = tuple[str, ...]


def machine_row(name: str, config: DictConfig, about: str) -> Row:
    if OmegaConf.missing_keys(config):
        return (
            name,
            "given",
            "given",
            "given",
            str(config.preset),
            str(config.validated),
            str(config.source),
        )
    machine: Hardware = make_object(config)
    links = " <- ".join(f"{link.name} {link.bytes_per_s / 1e9:.3g}" for link in machine.links)
    memory = f"{machine.memory_gib:g}"
    bandwidth = f"{machine.compute.memory_gb_per_s * machine.compute.memory_efficiency:.4g}"
    return (name, memory, bandwidth, links, machine.preset, machine.validated, machine.source)


def model_row(name: str, config: DictConfig, about: str) -> Row:
    model: Model = with_whole(make_object(config))
    shape = f"{model.sites} x {model.experts}, top-{model.top_k}"
    experts = model.sites * model.stored_experts * model.expert_bytes("fp16") / GIB
    label = f" ({model.transplant})" if model.transplant else ""
    return (
        name,
        shape,
        f"{model.total_params / 1e9:.4g} B",
        f"{model.expert_bytes('fp16') / 1e6:.4g} MB",
        f"{experts:.4g} GiB",
        f"{model.kv_bytes_per_token / 1024:.4g} KiB",
        model.source + label,
    )


def workload_row(name: str, config: DictConfig, about: str) -> Row:
    steps: WorkloadChoice = make_object(config)
    lengths = " / ".join(
        "as recorded" if n is None else str(n) for n in (steps.prompt_tokens, steps.decode_tokens)
    )
    together = (
        f"{steps.batching}, {steps.together} at once" if steps.together > 1 else steps.batching
    )
    return (name, together, lengths, about, steps.source)


def trace_row(name: str, config: DictConfig, about: str) -> Row:
    directory = trace_directory(str(config.path))
    header = parse_header((directory / "header.json").read_text(encoding="utf-8"))
    tokens = sum(s.prompt_tokens + s.decode_tokens for s in header.sequences)
    shape = header.model
    return (
        name,
        f"{shape.name}: {shape.sites} x {shape.experts}, top-{shape.top_k}",
        str(len(header.sequences)),
        f"{tokens:,}",
        about,
        f"{header.source}; {header.licence}",
    )


def system_row(name: str, config: DictConfig, about: str) -> Row:
    chosen: dict[str, str] = {}
    for choice in config.defaults:
        if OmegaConf.is_dict(choice):
            chosen |= {str(key).rpartition("/")[2]: str(value) for key, value in choice.items()}
    return (
        name,
        *(chosen.get(part, "") for part in ("predictor", "cache", "precision", "loader")),
        about,
    )


KINDS: dict[str, tuple[str, tuple[str, ...], Callable[[str, DictConfig, str], Row]]] = {
    "systems": (
        "system",
        ("predictor", "cache", "precision", "loader", "what it is, and its source"),
        system_row,
    ),
    "models": (
        "model",
        ("sites x experts", "parameters", "expert, fp16", "experts, fp16", "KV a token", "source"),
        model_row,
    ),
    "machines": (
        "hardware",
        ("GiB", "memory GB/s", "links GB/s", "preset", "validated", "source"),
        machine_row,
    ),
    "traces": (
        "trace",
        ("gates of", "sequences", "tokens", "what it is", "source; licence"),
        trace_row,
    ),
    "workloads": ("workload", ("steps", "tokens in / out", "what it is", "source"), workload_row),
}
"""By the word of the command: the group of conf/, the columns after the name, and the function that
makes a line.
"""


def table(kind: str) -> Table:
    """A table of every file of a kind; bandwidths are multiplied by their efficiency.

    Raise ValueError for an unknown kind, and for a broken file.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no list of {kind!r}; choose one of {', '.join(KINDS)}")
    group, columns, row = KINDS[kind]
    lines = Table(group, *columns, title=kind, row_styles=("", "dim"))
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for place in sorted((CONF / group).glob("*.yaml")):
            # A system is read as it stands: composing it would change the rest of a run.
            config = (
                OmegaConf.load(place)
                if group == "system"
                else compose(f"{group}/{place.stem}")[group]
            )
            assert isinstance(config, DictConfig)
            try:
                lines.add_row(*row(place.stem, config, first_sentence(place)))
            # A class may refuse what its file says by any exception.
            except Exception as error:
                raise ValueError(f"{place}: {error}") from error
    return lines


def first_sentence(place: Path) -> str:
    """The first sentence of the comment at the head of a file of conf/."""
    text = place.read_text(encoding="utf-8")
    comment = " ".join(
        line[1:].strip()
        for line in text.split("\n_")[0].split("\ndefaults")[0].splitlines()
        if line.startswith("#") and "@package" not in line
    )
    # A sentence ends where a capital follows; so the point of an abbreviation or number ends none.
    return re.split(r"(?<=[.:])\s+(?=[A-Z])", comment, maxsplit=1)[0].rstrip(".:")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr."""
    try:
        if len(arguments) != 1:
            raise ValueError(f"say what to list: python -m sim list {'|'.join(KINDS)}")
        # A terminal wraps lines at its width; a pipe or a file gets whole lines.
        Console(width=None if sys.stdout.isatty() else 250).print(table(arguments[0]))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
