"""The error of captures. It is apart from what needs torch, so that a refusal is quick."""

from __future__ import annotations


class CaptureError(ValueError):
    """A model or run cannot be recorded faithfully.

    The message says what was found and the way out.
    """
