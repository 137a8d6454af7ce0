"""The options of ``dovetail fit`` that keep tensors in a wider precision, ready to be copied."""

from __future__ import annotations

import re
import shlex

import onnx_ir as ir

from dovetail.model.edit import is_float
from dovetail.model.origin import origin_of
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


def names_to_keep(value: ir.Value) -> list[str]:
    """The tensors that must be float so that this one is never quantized: those that its readers compute, too.

    A reader that computes in integers would quantize it on its own edge.
    """
    outputs = [output for node, _ in value.uses() for output in node.outputs if is_float(output)]
    return list(dict.fromkeys(origin_of(tensor).name for tensor in (value, *outputs)))
