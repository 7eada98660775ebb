"""The project's version, which pyproject.toml reads from here; it works without installation."""

VERSION = "0.1.0"
