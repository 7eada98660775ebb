"""The simulator of expert offloading, and the policies that decide it. Never imports torch."""

import sys
from importlib import import_module

from sim.process.interrupts import end_commands_quietly

end_commands_quietly()
# A command's help, and a word that it does not take, are answered before it is loaded. While Python
# looks for the command, argv[0] is "-m".
if sys.argv[:1] == ["-m"]:
    import_module("sim.verbs.begin").begin()


def __getattr__(name: str) -> object:
    # Loading the simulator takes a second, and most who import something of it want a part. The
    # module is named by a string: an import statement, wherever it stood, would make all of the
    # simulator's code a part of every module's here (`sim.values.code`).
    if name in ("run", "compare"):
        return getattr(import_module("sim.answers.python"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
