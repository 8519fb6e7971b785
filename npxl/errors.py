"""The one exception that speaks to the user."""

from __future__ import annotations


class NpxlError(ValueError):
    """Something the caller can put right.

    The message says what was passed, what was expected and what to do.  The command line prints it
    as one sentence and exits with code 2; anything else that escapes is a bug in npxl.
    """


def described(value: object) -> str:
    """What was passed, in a few words: an array by its shape and type, another object by its."""
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {value.shape} and type {value.dtype}"
    return f"of type {type(value).__name__}"
