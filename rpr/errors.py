"""The one error that the command line answers with a single line."""


class UserError(Exception):
    """Bad input. One line: names the flag, the value and what is allowed."""
