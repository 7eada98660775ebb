"""The project's version. pyproject.toml reads it from here; what is not installed has it, too."""

VERSION = "0.1.0"
