"""Everything about the package stands in pyproject.toml, but for one step of its build: a wheel
carries ``conf/`` as ``sim/conf``, for nothing called ``conf`` belongs into site-packages.
"""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, rmtree

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfiguration(build_py):
    """An editable installation reads ``conf/`` where it is and needs no copy."""

    def run(self) -> None:
        if not self.editable_mode:
            # A module that was moved since an older build would be packed again.
            rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            copytree("conf", Path(self.build_lib, "sim", "conf"))


setup(cmdclass={"build_py": BuildWithConfiguration})
