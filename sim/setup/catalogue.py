"""The lists of what there is to choose from: a table of the files in ``conf/``, one line each.

Files are read as they stand and not composed. Each kind of line imports what it needs itself, so
that a list is there in half a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from sim.values.fields import HEADER_FILE
from sim.values.places import CONF, MECHANISMS, ROOT
from sim.values.units import GIB, MIB
from sim.verbs.names import names, nearest, of_file, read

if TYPE_CHECKING:  # numpy comes with it, and each kind of line imports what it needs
    from sim.machine.model import Model

Row = tuple[str, ...]
Section = Mapping[str, Any]
GIVEN = "???"
"""A value that the command line must give."""


def machine_row(name: str, config: Section, about: str) -> Row:
    if GIVEN in repr(config):
        return (
            name,
            "given",
            "given",
            "given",
            str(config["preset"]),
            str(config["validated"]),
            str(config["source"]),
        )
    from sim.machine.hardware import NEVER, Hardware
    from sim.setup.sections import make_object

    machine: Hardware = make_object(dict(config))
    links = " <- ".join(f"{link.name} {link.bytes_per_s / 1e9:.3g}" for link in machine.links)
    memory = f"{machine.memory_gib:g}"
    bandwidth = f"{machine.compute.memory_gb_per_s * machine.compute.memory_efficiency:.4g}"
    error = machine.compared
    validated = NEVER if error is None else error.short
    return (name, memory, bandwidth, links, machine.preset, validated, machine.source)


def model_row(name: str, config: Section, about: str) -> Row:
    from sim.setup.sections import make_object
    from sim.setup.whole import with_whole

    model: Model = with_whole(make_object(dict(config)))
    shape = f"{model.sites} x {model.experts}, top-{model.top_k}"
    expert_bytes = model.expert_bytes(model.stored)
    experts = model.sites * model.stored_experts * expert_bytes / GIB
    label = f" ({model.transplant})" if model.transplant else ""
    return (
        name,
        shape,
        f"{model.total_params / 1e9:.4g} B",
        model.stored,
        f"{expert_bytes / MIB:.4g} MiB",
        f"{experts:.4g} GiB",
        _kv(model),
        model.source + label,
    )


def _kv(model: Model) -> str:
    """The bytes of keys and values of a token; in brackets those that it keeps beyond all windows."""
    each, beyond = model.kv_bytes_per_token, model.kv_bytes_by_window().get(0, 0)
    return f"{each / 1024:.4g} KiB" + (f" ({beyond / 1024:.4g})" if beyond < each else "")


def workload_row(name: str, config: Section, about: str) -> Row:
    lengths = " / ".join(
        "as recorded" if config.get(key) is None else str(config[key])
        for key in ("prompt_tokens", "decode_tokens")
    )
    batching, together = config["batching"], config["together"]
    at_once = f"{batching}, {together} at once" if together > 1 else batching
    return (name, at_once, lengths, about, str(config.get("source", "")))


def trace_row(name: str, config: Section, about: str) -> Row:
    if config["path"] is None:
        return (
            name,
            "the run's model",
            "its own",
            "its own",
            about,
            "recorded or synthetic, as labels say",
        )
    # A trace's own reader checks all of a header, with packages that a list does without.
    place = ROOT / config["path"] / HEADER_FILE
    if not place.is_file():  # of a file of one's own
        place = Path(config["path"]) / HEADER_FILE
    header = json.loads(place.read_text(encoding="utf-8"))
    tokens = sum(one["prompt_tokens"] + one["decode_tokens"] for one in header["sequences"])
    shape = header["model"]
    return (
        name,
        f"{shape['name']}: {shape['sites']} x {shape['experts']}, top-{shape['top_k']}",
        str(len(header["sequences"])),
        f"{tokens:,}",
        about,
        f"{header['source']}; {header['licence']}",
    )


def system_row(name: str, config: Section, about: str) -> Row:
    chosen: dict[str, str] = {}
    for choice in config.get("defaults", ()):
        if isinstance(choice, dict):
            chosen |= {str(key).rpartition("/")[2]: str(value) for key, value in choice.items()}
    return (
        name,
        *(chosen.get(part, "") for part in ("predictor", "cache", "precision", "loader")),
        about,
    )


def policy_row(name: str, config: Section, about: str) -> Row:
    target = str(config.get("_target_", "")).rpartition(".")[2]
    return (name, target, about)


KINDS: dict[str, tuple[str, tuple[str, ...], Callable[[str, Section, str], Row]]] = {
    "systems": (
        "system",
        ("predictor", "cache", "precision", "loader", "what it is, and its source"),
        system_row,
    ),
    "models": (
        "model",
        (
            "sites x experts",
            "parameters",
            "experts in",
            "one expert",
            "all experts",
            "KV a token",
            "source",
        ),
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
POLICIES = "policies"


def own_folders(text: str) -> list[Path]:
    """The folders of a word for ``hydra.searchpath``. Raise ValueError for one that is not there.

    >>> own_folders("[sim,'file://conf']"), own_folders("[]")
    ([PosixPath('sim'), PosixPath('conf')], [])
    """
    told = [one.strip().strip("'\"") for one in text.strip("[] ").split(",")]
    folders = [Path(one.removeprefix("file://")) for one in told if one]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"hydra.searchpath={text}: {folder} is no folder that can be seen from {Path.cwd()};"
                " give its whole path"
            )
    return folders


def table(kind: str, own: Sequence[Path] = ()) -> Table:
    """A table of every file of a kind, those in folders of one's ``own`` last; bandwidths are
    multiplied by their efficiency.

    Raise ValueError for an unknown kind, and for a broken file.
    """
    if kind == POLICIES:
        lines = Table("part", "name", "class", "what it is", title=kind)
        for part in MECHANISMS:
            for row in _rows(part, policy_row, own):
                lines.add_row(part, *row)
            lines.add_section()
        return lines
    if kind not in KINDS:
        known = (*KINDS, POLICIES)
        raise ValueError(
            f"there is no list of {kind!r}; choose one of {', '.join(known)}{nearest(kind, known)}"
        )
    group, columns, row_of = KINDS[kind]
    lines = Table(group, *columns, title=kind, row_styles=("", "dim"))
    for row in _rows(group, row_of, own):
        lines.add_row(*row)
    return lines


def _rows(
    group: str, row_of: Callable[[str, Section, str], Row], own: Sequence[Path] = ()
) -> list[Row]:
    """The lines of a group. Raise ValueError, naming the file, for one that is broken."""
    rows, folders = [], (CONF, *own)
    for number, folder in enumerate(folders):
        for name in names(group, folder):
            # A run reads the first folder that has the name.
            if any(name in names(group, other) for other in folders[:number]):
                continue
            place = folder / group / f"{name}.yaml"
            # A system is read as it stands: what it begins from would change the rest of a run.
            config = read(place) if group == "system" else of_file(group, name, folders)
            try:
                rows.append(row_of(name, config, first_sentence(group, name, folder)))
            # A class may refuse what its file says by any exception.
            except Exception as error:
                raise ValueError(f"{place}: {error}") from error
    return rows


def first_sentence(group: str, name: str, folder: Path | None = None) -> str:
    """The first sentence of the comment at the head of a file of conf/, or of another folder."""
    text = ((folder or CONF) / group / f"{name}.yaml").read_text(encoding="utf-8")
    comment = " ".join(
        line[1:].strip()
        for line in text.split("\n_")[0].split("\ndefaults")[0].splitlines()
        if line.startswith("#") and "@package" not in line
    )
    # A sentence ends where a capital follows; so the point of an abbreviation or number ends none.
    return re.split(r"(?<=[.:])\s+(?=[A-Z])", comment, maxsplit=1)[0].rstrip(".:")
