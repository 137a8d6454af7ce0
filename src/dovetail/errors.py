"""The one error a caller can cause: bad input, said in one sentence that names the culprit."""


class InputError(Exception):
    """The caller gave something we cannot take; the text names the tensor, node, key or file."""


class BackendError(Exception):
    """A vendor component is missing, crashed or answered something we cannot read."""
