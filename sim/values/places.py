"""The places of the project's own files: its configuration and the bundled data.

In a checkout ``conf/`` lies beside the packages; an installed package carries it inside ``sim``.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

ROOT = Path(str(files("sim"))).parent
"""The folder that holds the packages.

Relative paths that do not exist below the working directory are looked up here.
"""
_CARRIED = ROOT / "sim" / "conf"
CONF = _CARRIED if _CARRIED.is_dir() else ROOT / "conf"
"""The configuration, with a folder for each group."""
ASSETS = ROOT / "capture" / "assets"
"""The bundled models, traces, fits and prompts."""
PRESETS = ROOT / "capture" / "presets"
"""The synthesiser's presets."""
