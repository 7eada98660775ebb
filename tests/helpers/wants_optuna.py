"""A command of a package that is not installed."""

import optuna  # noqa: F401
