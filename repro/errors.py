"""The one error that is the user's to mend."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: in one line what is wrong, what was expected and what to do.

    The command ends with this line and status 2. Any other exception is a bug of ours and shows its
    traceback.
    """
