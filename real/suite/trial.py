"""Tries whether the project itself works here: imports its modules, and runs its systems once.

That all packages are there does not tell: the project may be unpacked in part, or need what a mere
folder on PYTHONPATH does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from real.calibration.sizes import OWN_WORDS, SIZES
from real.suite.pieces import PIECES, REPORT

BY_NAME = ("real.setup.devices", "real.cuda.device")
"""Modules that the pieces reach only by a name in a string."""


def trial(size: str) -> list[str]:
    """What does not work, a line each.

    First all modules are imported that the pieces import, directly or not, also inside functions.
    If that works, every system of this size runs on the null device, which needs no store.
    """
    found = [
        line
        for name in _modules()
        if (line := _fault(f"{name} cannot be imported", lambda: import_module(name)))  # noqa: B023
    ]
    if found:
        return found
    systems = SIZES[size].systems
    tried = [
        _fault(f"{name} does not run on device=null", lambda: _run(size, name))  # noqa: B023
        for name in systems
    ]
    return [line for line in tried if line]


def told(faults: list[str]) -> str:
    """The faults, with the way out."""
    return "\n".join(
        [
            *faults,
            (
                "the project is not whole here, or does not fit these packages: unpack the bundle"
                " anew (python -m real.suite bundle), or set PYTHONPATH to the root of a checkout"
            ),
        ]
    )


def _modules() -> list[str]:
    # Reading the code needs packages, so these are imported only after packages have been checked.
    from sim.values.code import Code
    from sim.values.places import ROOT

    places = [piece.place.partition(":")[0] for piece in (*PIECES, REPORT)]
    return sorted(Code(ROOT).reached([*places, *BY_NAME]))


def _run(size: str, system: str) -> None:
    from real.setup.execute import measure, replay_driver
    from real.setup.prepare import prepare_replay
    from real.validation.cases import request_of

    one = SIZES[size]
    words = (*one.words, *OWN_WORDS.get(system, ()), "device=null")
    prepared = prepare_replay(request_of(words, system, one.budgets[0]))
    driver = replay_driver(prepared)
    measure(prepared, prepared.run, driver, driver.drive())


def _fault(what: str, work: Callable[[], object]) -> str | None:
    try:
        work()
    except Exception as error:  # whatever it is, it belongs on the list
        return f"{what} ({type(error).__name__}: {' '.join(str(error).split())})"
    return None
