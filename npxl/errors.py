"""The one exception that speaks to the user."""


class NpxlError(ValueError):
    """Something the caller can put right.

    The message says what was passed, what was expected and what to do.  The command line prints it
    as one sentence and exits with code 2; anything else that escapes is a bug in npxl.
    """
