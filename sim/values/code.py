"""Code as a digest: modules, what they import, and the files of classes of somebody's own.

Results that are kept, cells of studies and certificates are named by it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from sim.values.places import ROOT, name_of

PACKAGES = ("numpy", "polars", "simpy")
"""Packages besides the project on which results depend."""
DIGITS = 24


def digest(*parts: object) -> str:
    """A digest of ``parts``, in order; a part is anything that json can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[
        :DIGITS
    ]


def files_digest(files: Iterable[Path]) -> str:
    """A digest of the names and the bytes of ``files``, in order of their paths.

    Names are relative to the project; a file outside of it counts by its last part.
    """
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{name_of(path)} {path.stat().st_size} ".encode() + path.read_bytes())
    return total.hexdigest()[:DIGITS]


@cache
def versions() -> str:
    return " ".join(
        [
            f"python {sys.version_info[0]}.{sys.version_info[1]}",
            *(f"{p} {version(p)}" for p in PACKAGES),
        ]
    )


# ---- code


class Code:
    """The modules below ``root``: their imports of each other, and digests of their code."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[str, Path | None] = {}
        self._trees: dict[str, ast.Module] = {}
        self._exports: dict[str, Mapping[str, str]] = {}
        self._digests: dict[str, str] = {}
        self._imports: dict[str, tuple[str, ...]] = {}

    def digest(self, *modules: str) -> str:
        """A digest of ``modules`` and of all modules below ``root`` that they import.

        Imports inside functions, and imports of imported modules, count. Comments, docstrings and
        layout do not. Raise ValueError for a module that does not exist.
        """
        return digest(
            versions(), [(name, self.own_digest(name)) for name in sorted(self.reached(modules))]
        )

    def reached(self, modules: Iterable[str]) -> set[str]:
        """``modules``, the packages that they lie in, and all that these import.

        A package that only exports names is left out: importing a name from it reaches the module
        behind that name.
        """
        found: set[str] = set()
        waiting = list(modules)
        if unknown := [name for name in waiting if self.file_of(name) is None]:
            raise ValueError(f"no modules below {self.root}: {', '.join(unknown)}")
        while waiting:
            name = waiting.pop()
            if name not in found and self.file_of(name) is not None and not self.exports(name):
                found.add(name)
                if name not in self._imports:
                    self._imports[name] = (*self._imported(name), *_packages(name))
                waiting += self._imports[name]
        return found

    def exports(self, package: str) -> Mapping[str, str]:
        """The names that a package exports, each with the module behind it.

        Empty for a module, and for a package that does more than exporting names.
        """
        if package not in self._exports:
            path = self.file_of(package)
            found = {}
            if path is not None and path.name == "__init__.py":
                body = [node for node in self._tree(package).body if not _is_text(node)]
                if all(_is_export(node) for node in body):
                    found = {
                        alias.name: str(node.module)
                        for node in body
                        if isinstance(node, ast.ImportFrom)
                        for alias in node.names
                    }
            self._exports[package] = found
        return self._exports[package]

    def module_of(self, path: str) -> str:
        """The module of a dotted name: ``sim.policies.recency`` of ``sim.policies.LRU``."""
        parts = path.split(".")
        end = next(
            end
            for end in range(len(parts), 0, -1)
            if self.file_of(".".join(parts[:end])) is not None
        )
        name = ".".join(parts[:end])
        return self.exports(name).get(parts[end], name) if end < len(parts) else name

    def has(self, path: str) -> bool:
        """Whether a dotted name begins with a package of the project."""
        return self.file_of(path.partition(".")[0]) is not None

    def file_of(self, name: str) -> Path | None:
        if name not in self._files:
            place = self.root.joinpath(*name.split("."))
            files = (place.with_name(f"{place.name}.py"), place / "__init__.py")
            self._files[name] = next((path for path in files if path.is_file()), None)
        return self._files[name]

    def own_digest(self, name: str) -> str:
        """A digest of one module's code alone."""
        if name not in self._digests:
            self._digests[name] = self._digest_of(name)
        return self._digests[name]

    def _digest_of(self, name: str) -> str:
        tree = self._tree(name)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
        return digest(ast.dump(tree))

    def _tree(self, name: str) -> ast.Module:
        if name not in self._trees:
            path = self.file_of(name)
            assert path is not None
            self._trees[name] = ast.parse(path.read_bytes(), filename=str(path))
        return self._trees[name]

    def _imported(self, name: str) -> Iterator[str]:
        """The modules that the module's import statements name, and the packages around them.

        ``from a import b`` names ``a`` and ``a.b``.
        """
        path = self.file_of(name)
        package = (
            name.split(".")
            if path is not None and path.name == "__init__.py"
            else name.split(".")[:-1]
        )
        for node in ast.walk(self._tree(name)):
            named = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                named = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            for one in named:
                origin, _, last = one.rpartition(".")
                yield from (self.exports(origin).get(last, one) if origin else one, *_packages(one))


def _packages(name: str) -> Iterator[str]:
    """The packages that a module lies in."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def _is_export(node: ast.AST) -> bool:
    """Whether ``node`` is ``from package.module import Name`` or ``__all__ = [...]``."""
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    return isinstance(node, ast.ImportFrom) and node.level == 0


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


OWN = Code(ROOT)


@cache
def code_digest(*modules: str) -> str:
    """`Code.digest` of the project's ``modules``."""
    return OWN.digest(*modules)


@cache
def project_digest() -> str:
    """A digest of the bytes of all of the simulator's files, and of the packages' versions. It takes
    some ms, where `code_digest`, which knows what a run reaches, takes seconds.
    """
    return digest(versions(), files_digest((ROOT / "sim").rglob("*.py")))


def targets(config: object) -> set[str]:
    """The classes that the ``_target_`` entries in nested values name."""
    if isinstance(config, Mapping):
        own = {str(config["_target_"])} if "_target_" in config else set()
        return own.union(*map(targets, config.values()))
    if isinstance(config, list | tuple):
        return set[str]().union(*map(targets, config))
    return set()


def target_modules(config: object) -> set[str]:
    """The project's modules that the ``_target_`` entries in nested values name."""
    return {OWN.module_of(name) for name in targets(config) if OWN.has(name)}


def foreign_files(config: object) -> list[Path]:
    """The files of classes that lie outside the project, with those that they import from beside
    them, by path.
    """
    found: set[Path] = set()
    for name in targets(config):
        if not OWN.has(name):
            found.update(_files_outside(name))
    return sorted(found)


def _files_outside(name: str) -> Iterator[Path]:
    top = name.partition(".")[0]
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return  # the run says so
    if spec is None:
        return
    origin = Path(spec.origin or "")
    if origin.suffix != ".py":
        # A folder without __init__.py, or built in.
        places = [Path(place) for place in spec.submodule_search_locations or ()]
        if not places:
            return
    else:
        places = [origin.parent if origin.name == "__init__.py" else origin.with_suffix("")]
    code = Code(places[0].parent)
    try:
        reached = code.reached([code.module_of(name)])
    except (StopIteration, SyntaxError, OSError, ValueError):
        reached = {top}  # the run says so
    for module in reached:
        path = code.file_of(module)
        # Packages that are installed beside it have versions.
        if path is not None and (module.partition(".")[0] == top or not _is_installed(path)):
            yield path


def _is_installed(path: Path) -> bool:
    return "site-packages" in path.parts
