"""The options of ``dovetail fit`` that keep tensors in a wider precision, ready to be copied."""

from __future__ import annotations

import re
import shlex

from dovetail.op_support import OpTable


def float_precision(table: OpTable) -> str | None:
    """The float precision of a target, or None if it computes in integers only."""
    for name, precision in table.precisions.items():
        if not precision.activation.dtype.is_quantized and not precision.weight.dtype.is_quantized:
            return name
    return None


def keep_line(names: list[str], precision: str) -> str:
    """The options that keep these tensors in a precision, quoted for a shell."""
    patterns = (re.sub(r"([*?[])", r"[\1]", name) for name in names)
    return " ".join(f"--keep {shlex.quote(f'{pattern}={precision}')}" for pattern in patterns)
