"""``moelab COMMAND ...``: every command of the project under one name.

``moelab run system=lru`` is ``python -m sim system=lru``, and so on down the table. A command runs
as ``python -m`` runs it: it is not imported before it is asked for, and what it needs besides the
core (torch, say) is missed only then.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten

from sim.process.interrupts import code_of

COMMANDS = {
    "run": "sim",
    "compare": "sim.compare",
    "explain": "sim.explain",
    "audit": "sim.audit",
    "audit_time": "sim.audit_time",
    "report": "sim.report",
    "whatif": "sim.whatif",
    "study": "sim.study",
    "versus": "sim.versus",
    "pareto": "sim.pareto",
    "screen": "sim.screen",
    "fit": "sim.fit",
    "models": "sim.models",
    "calibrate": "sim.calibrate",
    "check": "sim.check",
    "reproduce": "sim.reproduce",
    "demo": "sim.demo",
    "capture": "capture",
    "capture import_trace": "capture.import_trace",
    "capture synthesize": "capture.synthesize",
    "capture lint": "capture.lint",
    "capture stats": "capture.stats",
    "capture fit": "capture.fit",
    "capture channels": "capture.channels",
    "capture repack": "capture.repack",
    "capture check_synthesis": "capture.check_synthesis",
    "real": "real",
    "real calibrate": "real.calibrate",
    "real validate": "real.validate",
    "real suite": "real.suite",
    "real predict": "real.predict",
    "real probe": "real.probe",
    "real quality": "real.quality",
    "real quality_front": "real.quality_front",
    "real quality_fit": "real.quality_fit",
    "real quality_figures": "real.quality_figures",
    "real closed_loop": "real.closed_loop",
}
"""What is typed, and the module that ``python -m`` would run."""
USAGE = "usage: moelab COMMAND [...]; moelab COMMAND --help, or the docs, say what a command takes"
CALL = "``python -m "
OWN = ("sim", "capture", "real")
DISTRIBUTION = "moe-offload-lab"


def chosen(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that ``words`` begin with, and the words that are for it. The longest counts:
    ``capture lint TRACE`` is not ``capture`` of a word ``lint``. Raise ValueError for none.
    """
    for length in (2, 1):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name, list(words[length:])
    raise ValueError(f"{words[0]!r} is no command; moelab --help lists them")


def summary(module: str) -> str:
    """What a command does: the first sentence of its docstring, without the way to call it. The
    module is read, not imported.
    """
    spec = find_spec(f"{module}.__main__" if _is_package(module) else module)
    assert spec is not None, module
    assert spec.origin is not None, module
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_bytes())) or ""
    told = [" ".join(part.split()) for part in text.split("\n\n")]
    # "``python -m sim.x A B``: what it does.", or how to call it alone, and then what it does.
    told = [part.rpartition("``: ")[2] if part.startswith(CALL) else part for part in told]
    first = next(part for part in told if not part.startswith(CALL)).split(". ")[0].rstrip(".:")
    return shorten(first[:1].upper() + first[1:], 96, placeholder=" ...")


def _is_package(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def help_lines() -> Iterator[str]:
    yield USAGE
    yield ""
    width = max(map(len, COMMANDS))
    for name, module in COMMANDS.items():
        yield f"  {name:{width}}  {summary(module)}"
    if find_spec("torch") is None:
        yield ""
        yield f"Most of capture and real needs torch, which is not installed{way_to('torch')}."


def way_to(package: str) -> str:
    """How to install a package that an extra of this distribution brings, or nothing."""
    extras: dict[str, list[str]] = {}
    try:
        for line in requires(DISTRIBUTION) or ():
            if extra := re.search(r"extra == ['\"](\w+)['\"]", line):
                name = re.split(r"[^\w.-]", line)[0].lower().replace("-", "_")
                extras.setdefault(extra[1], []).append(name)
    except PackageNotFoundError:  # run from a checkout that nobody has installed
        return ""
    # The smallest of those that have it: what a user wants, not what the tests want.
    having = [extra for extra, names in extras.items() if package.lower() in names]
    best = min(having, key=lambda extra: len(extras[extra]), default=None)
    return f": pip install '{DISTRIBUTION}[{best}]'" if best else ""


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: the command's own; 2 for a word that is no command, and where a package is
    missing.
    """
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help"):
        print(*help_lines(), sep="\n")
        return 0 if words else 2
    try:
        name, rest = chosen(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.argv = [sys.argv[0], *rest]
    try:
        runpy.run_module(COMMANDS[name], run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in OWN:
            raise
        told = f"error: moelab {name} needs {package}, which is not installed{way_to(package)}"
        print(told, file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted", file=sys.stderr)
        return code_of(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
