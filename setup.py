"""Everything about the package stands in pyproject.toml, but for two steps of its build.

A wheel carries ``conf/`` as ``sim/conf``, for nothing called ``conf`` belongs into site-packages.
With MOELAB_COMPILED=1 in the environment a wheel has the modules of `COMPILED` in machine code, too,
made by mypyc of the same source (``make compiled``).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from shutil import copytree, rmtree

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

COMPILED: dict[str, tuple[str, ...]] = {
    "sim/core/claims.py": (),
    "sim/core/controller.py": (),
    "sim/core/lookups.py": (),
    "sim/core/prefetches.py": (),
    "sim/core/protection.py": (),
    "sim/core/queues.py": (),
    "sim/core/slots.py": ("Slots",),
    "sim/core/transfer.py": (),
    "sim/core/transfers.py": (),
    "sim/engine/engine.py": ("Engine",),
    "sim/engine/links.py": ("Link", "PagedLink", "ChunkedLink", "SharedLink"),
    "sim/engine/stream.py": ("Line", "Stream"),
    "sim/policies/by_score.py": ("ByScore",),
    "sim/policies/scored.py": ("Scored",),
    "sim/policies/weighted_terms.py": ("WeightedTerms",),
    "sim/workload/gates.py": (),
}
"""What runs at every gate and transfer, with the classes from which other modules derive.

Of policies these are classes without settings. Machine code would refuse a setting of a wrong type
before its policy could name it, and would take ``true`` for 1.
"""
MAY_BE_DERIVED_FROM = "@mypyc_attr(allow_interpreted_subclasses=True)"
STAGED = Path("build", "compiled")
TYPES = """
[mypy]
follow_imports = silent
ignore_missing_imports = True
[mypy-polars.*,pandas.*,scipy.*,matplotlib.*,hydra.*,omegaconf.*,rich.*]
follow_imports = skip
"""
"""The types of these packages take minutes to read, and are not asked for here."""


class BuildWithConfiguration(build_py):
    """An editable installation reads ``conf/`` where it is and needs no copy."""

    def run(self) -> None:
        if not self.editable_mode:
            # A module that was moved since an older build would be packed again.
            rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            copytree("conf", Path(self.build_lib, "sim", "conf"))


def marked(source: str, classes: tuple[str, ...]) -> str:
    """The source with a mark at each of these classes, which mypyc wants to have.

    Marks take the place of empty lines, so that a traceback names the right line.
    """
    first = "from __future__ import annotations\n\n"
    assert first in source
    source = source.replace(
        first,
        "from __future__ import annotations; MYPY = False\n"
        "if MYPY: from mypy_extensions import mypyc_attr\n",
    )
    for name in classes:
        source, found = re.subn(
            rf"\n\nclass {name}\b", f"\n{MAY_BE_DERIVED_FROM}\nclass {name}", source
        )
        assert found == 1, name
    return source


def compiled() -> list[Extension]:
    """The modules in machine code, of a copy of the source.

    Only a wheel gets them: in a checkout they would go on running after their source was changed.
    """
    if not os.environ.get("MOELAB_COMPILED"):
        return []
    if "editable_wheel" in sys.argv:
        raise SystemExit("MOELAB_COMPILED=1 makes wheels: machine code does not follow its source")
    if "bdist_wheel" not in sys.argv:
        return []
    from mypyc.build import mypycify

    rmtree(STAGED, ignore_errors=True)
    copytree("sim", STAGED / "sim")
    for name, classes in COMPILED.items():
        module = STAGED / name
        module.write_text(marked(module.read_text(), classes))
    (STAGED / "mypy.ini").write_text(TYPES)
    there = Path.cwd()
    os.chdir(STAGED)  # mypyc names modules by their paths
    try:
        return mypycify(
            ["--config-file=mypy.ini", *COMPILED],
            debug_level="0",
            group_name="moelab",
            target_dir=str(there / STAGED),
        )
    finally:
        os.chdir(there)


setup(
    cmdclass={"build_py": BuildWithConfiguration},
    ext_modules=compiled(),
    setup_requires=["mypy>=2.4"] if os.environ.get("MOELAB_COMPILED") else [],
)
