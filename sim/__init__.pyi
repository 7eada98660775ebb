# What __getattr__ in __init__.py resolves, for type checkers.
from sim.answers.python import compare as compare
from sim.answers.python import run as run
