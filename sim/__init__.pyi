# What __getattr__ in __init__.py resolves, for type checkers.
from sim.answers.face import compare as compare
from sim.answers.face import run as run
