"""Keys of kept results: digests of what a result depends on, and of no more.

A result depends on its configuration's values, its trace's bytes and the code that it imports.
There are two keys:

- The narrow key names a result. It stays the same where an option is written in another way, or
  where code changes that no run reaches.
- The wide key only saves composing configurations, and leads to a narrow key. It changes with any
  code of the simulator and any option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sim.values.code import OWN, code_digest, digest, files_digest, target_modules, versions
from sim.values.places import CONF, ROOT

NO_PART = ("output_dir", "outputs", "bounds", "timeline_steps")
"""Settings on which no number of a reproduction depends."""


@cache
def wide_sources() -> str:
    """A digest of every option, and of all code that may compose a configuration or run it.

    That is all code of the simulator; of this package only what `sim.reproduce.arms` and its own
    predictors reach.
    """
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("sim/**/*.py")
    ]
    own = OWN.reached(["sim.reproduce.arms", "sim.reproduce.always_wrong"])
    code = [
        (name, OWN.own_digest(name))
        for name in sorted(modules)
        if not name.startswith("sim.reproduce.") or name in own
    ]
    return digest(versions(), code, files_digest(CONF.glob("**/*.yaml")))


def wide_key(words: Sequence[str], trace: str, timing: object, fits: Sequence[str]) -> str:
    """The wide key: of an arm's words, the digests of trace and fits, and `wide_sources`."""
    return digest(list(words), trace, timing, list(fits), wide_sources())


def narrow_key(
    runner: str, config: Mapping[str, Any], trace: str, timing: object, fit: str | None
) -> str:
    """The narrow key of a run: of its values, trace, given durations, fit and reached code.

    ``runner`` is the module that runs it. The paths of the trace and of the fit do not count.
    """
    kept = {name: value for name, value in config.items() if name not in NO_PART}
    kept["trace"] = {**config["trace"], "path": trace}
    if fit is not None:
        kept["predictor"] = {**config["predictor"], "artefact": fit}
    return digest(kept, timing, code_digest(runner, *sorted(target_modules(config))))
