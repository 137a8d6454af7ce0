"""The errors that are reported to the caller in one sentence: bad input, and vendor components that fail."""


class InputError(Exception):
    """The caller's input cannot be used; the message names the tensor, node, key or file."""


class MissingScaleError(InputError):
    """An encodings file has no scale for a tensor that is quantized, and there is no data to calibrate it."""


class BackendError(Exception):
    """A vendor component is missing, crashed, or returned something that cannot be parsed."""


class UnfinishedError(BackendError):
    """A vendor component was stopped or crashed before it finished, so its answer is unknown."""
