"""Importers of published routing: one module for each format; `source` and `parts` are shared."""
