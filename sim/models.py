"""``python -m sim.models``: compute a model's sizes from its transformers configuration alone.

    python -m sim.models from=config.json [name=NAME] [output=FILE]

The command prints the sizes, and the file that ``model=NAME`` reads. With ``output=mine/model/NAME.yaml``
it writes that file instead of printing it, and prints the words with which runs find it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sim.machine.model import Model
from sim.machine.model_config import config_text, model_from_config, not_read, read_config
from sim.machine.precision import AS_STORED, PRECISIONS
from sim.process.files import write_whole
from sim.results.folders import check_can_be_made
from sim.setup.own_gates import has_gates, lacking
from sim.values.places import words_for
from sim.values.units import GIB
from sim.verbs.table import verb_of
from sim.verbs.words import read


def request_of(arguments: Sequence[str]) -> tuple[Path, str, Path | None]:
    """The configuration's path, the model's name, and the file to write (or None).

    Raise ValueError for the first word that is wrong, and OSError for a file that cannot be written.
    """
    given = read(verb_of("models"), arguments).own
    path = Path(given["from"])
    path = path / "config.json" if path.is_dir() else path
    name = given.get("name") or _slug(
        path.resolve().parent.name if path.stem == "config" else path.stem
    )
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ValueError(f"name={name!r} must be lower-case letters, digits and _")
    output = Path(given["output"]) if "output" in given else None
    if output is not None and output.exists():
        raise ValueError(f"output={output} exists; remove it, or choose another name")
    if output is not None:
        _check_place(output)
        check_can_be_made(output, "output")
    return path, name, output


def _check_place(output: Path) -> None:
    """Raise ValueError for a file that no run would find."""
    folder = output.absolute().parent
    if (output.suffix, folder.name) != (".yaml", "model") or folder.parent == Path.cwd():
        raise ValueError(
            f"output={output}: runs find a model in the folder model of a folder of one's own; say"
            f" output=mine/model/{output.stem}.yaml"
        )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def sizes(model: Model) -> Table:
    """The table of a model's parameters and bytes, as it is published where not in 16 bits."""
    published = (model.stored, model.dense_bits) != (AS_STORED[1], 16)
    table = Table(
        "of the model",
        "parameters",
        *(["as published"] if published else []),
        *(f"at {name}" for name in ("fp16", "int8", "int4")),
        title=f"{model.name}: {model.sites} sites x {model.experts} experts, top-{model.top_k}",
    )
    bits = [PRECISIONS[name].gate for name in ("fp16", "int8", "int4")]
    stored = model.sites * model.stored_experts
    rows = {
        "one expert": (1, 0),
        "all experts": (stored, 0),
        "everything else": (0, 1),
        "in all": (stored, 1),
        "used by a token": (model.sites * model.top_k, 1),
    }
    for name, (experts, rest) in rows.items():
        params = experts * model.expert_params + rest * model.dense_params
        own = experts * model.expert_bytes(model.stored) + rest * model.dense_bytes
        sizes = [own] if published else []
        table.add_row(name, f"{params:,}", *map(_size, [*sizes, *(params * b / 8 for b in bits)]))
    table.caption = f"keys and values: {model.kv_bytes_per_token} B a token"
    if any(model.windows):
        beyond, longest = model.kv_bytes_by_window().get(0, 0), max(model.windows)
        table.caption += f", {beyond} of them of tokens more than {longest} back"
    if published:
        table.caption += (
            f"; published with experts in {model.stored}, all else in {model.dense_bits:g} bits"
        )
    table.caption += "; a token's use has the whole embedding, of which it reads a row"
    return table


def _size(size_bytes: float) -> str:
    return (
        f"{size_bytes / GIB:.4g} GiB" if size_bytes >= GIB else f"{size_bytes / (1 << 20):.4g} MiB"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command; return exit status 0, or 2 with one message on stderr, nothing written."""
    try:
        path, name, output = request_of(arguments)
        config = read_config(path)
        model = model_from_config(config, name, f"its transformers config.json ({path.name})")
        text = config_text(model, path)
        Console().print(sizes(model))
        if told := not_read(config):
            print(told, file=sys.stderr)
        if output is None:
            print(text, end="")
        else:
            write_whole(output, text)
            print(f"{output}; next: moelab ask machine=rtx4090_pcie4 {words_for(output, 'model')}")
            if not has_gates(model):
                print(f"first: {lacking(model)}; docs/ask.md (A model of another shape) has ways")
    except (ValueError, OSError) as error:
        print(f"models: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
