"""The one error a caller can cause: bad input, said in one sentence that names the culprit."""


class InputError(Exception):
    """The caller gave something we cannot take; the text names the tensor, node, key or file."""


class BackendError(Exception):
    """A vendor component is missing, crashed or answered something we cannot read."""


class UnfinishedError(BackendError):
    """A vendor component was stopped or crashed before it answered: what it would have answered is not known."""
