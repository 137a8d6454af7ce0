"""Q1: quantized types that the target does not have in any kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.origin import origin_of
from dovetail.model.place import at_tensor
from dovetail.op_support import OpTable
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule


@rule("Q107")
def activations_wider_than_every_kernel(subject: CheckInput) -> Iterator[Finding]:
    """Activations are quantized to more bits than any kernel of the target has.

    ## What it finds
    In QDQ models: activations in int16 or uint16 for a target all of whose quantized kernels are 8-bit. There is one
    finding for each type, at the first such tensor, with the number of tensors.

    ## Why it matters
    The target's compiler rejects the whole model, whatever else is right about it: TensorRT already when it reads the
    zero points, XNNPACK when the graph is lowered.

    ## How to fix it
    Quantize activations to 8 bits; `dovetail repair --precision w8a8` does this with calibration data, or `dovetail
    fit` from the float model. Where 8 bits cost too much accuracy, keep the tensors concerned in float.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: the parser rejects int16 and uint16 zero points ("Failed to import
      initializer"); the bad case below is built in the tests.
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64: the lowering to XNNPACK fails with "Unsupported dtype for
      quantization" on int16; uint16 has no mapping to torch. The bad case is lowered in the tests.
    """
    widest = _widest(subject.table)
    tensors: defaultdict[str, list[ir.Value]] = defaultdict(list)
    for value in _activations(subject.model.graph):
        choice = None if subject.plan is None else subject.plan.tensors.get(str(value.name))
        if choice is not None and isinstance(choice.storage, QParams) and choice.storage.dtype.bits > widest:
            tensors[str(choice.storage.dtype)].append(value)
    for dtype, values in tensors.items():
        yield Finding(
            "Q107",
            at_tensor(values[0]),
            f"{len(values)} activations are {dtype}, the first is {origin_of(values[0]).name!r}, but no kernel of "
            f"{subject.table.target} has more than {widest} bits",
            Severity.ERROR,
            {"activations": float(len(values)), "widest_bits": float(widest)},
            "quantize activations to 8 bits (`dovetail repair --precision w8a8`), or fit the float model",
        )


def _widest(table: OpTable) -> int:
    """The number of bits of the widest quantized activation that an operator reads or writes."""
    slots = [
        encoding
        for support in table.ops.values()
        for signature in support.signatures
        for encoding in (signature.output, *(slot.encoding for slot in signature.inputs if not slot.constant))
    ]
    return max((encoding.dtype.bits for encoding in slots if encoding.dtype.is_quantized), default=0)


def _activations(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs
