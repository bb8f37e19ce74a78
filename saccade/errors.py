"""The one error a user can act on."""


class SaccadeError(Exception):
    """Something in the user's hands is wrong; the message names it, gives its value and says what to do.

    The command line prints the message alone and exits with status 2; anything else that escapes is a bug and
    keeps its traceback.
    """
