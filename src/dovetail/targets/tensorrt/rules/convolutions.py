"""Q4 on TensorRT: convolutions for which the builder has no 8-bit kernel."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import DType
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, shape_of
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.tensorrt.chips import Gpu


@rule("Q427")
def convolution_without_8bit_kernel(subject: CheckInput) -> Iterator[Finding]:
    """A convolution has quantized operands, but the builder has no 8-bit kernel for it.

    ## What it finds
    In QDQ models: Conv with an activation and a weight both in int8 or both in float8, where the builder has no kernel
    of this type:

    - INT8: on sm75, any convolution.
    - FP8: kernels of more than 32 elements, such as 6 x 6 or 7 x 7. Depthwise ones with two channels or more are not
      reported for sm120 and later, where 7 x 7 runs in FP8.
    - both: four input channels or fewer of one sample, in one group, over one axis whose length is kept.

    ## Why it matters
    The builder silently computes it in the float type of the graph, or element by element: the Q/DQ pairs cost accuracy
    and time, and gain nothing.

    ## How to fix it
    Remove the Q/DQ pairs of this convolution, as `dovetail fit` does. Large kernels run in INT8 instead of FP8.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, built: INT8 for sm75 reads Half (Float in a float32 graph), and Int8 for sm80,
      sm86, sm89, sm120 and sm121; FP8 with 33, 36 and 49 elements reads Half for sm89, sm120 and sm121, and FP8 with
      30 and 32; no matrix kernel computes 4 channels of [1, C, 1, 1].
    - tensorrt: tensorrt-rtx 1.7.1.116, FP8 for sm120 and sm121: one channel over one axis ([1, 1, 16], [1, 1, 64] and
      [1, 1, 16, 1], kernels of 1 to 9) is a layer `Corr` that is no matrix kernel, as for sm89; for sm120 one channel
      by 7 x 7 reads Half. 2, 4 and 8 depthwise channels read FP8, also by 7 x 7.
    """
    gpu = subject.facts
    for operation in operations(subject):
        dtypes = {storage.dtype for operand, storage in operation.inputs if operand.slot < 2}
        if operation.op != "Conv" or len(dtypes) != 1 or not isinstance(gpu, Gpu):
            continue
        why = _no_kernel(subject, gpu, operation.node, next(iter(dtypes)))
        if why:
            message = f"{say(operation.node)} has Q/DQ pairs but does not run in 8 bit: {why}"
            fix = "remove the Q/DQ pairs of this convolution"
            yield Finding("Q427", at_node(operation.node), message, Severity.WARNING, fix=fix)


def _no_kernel(subject: CheckInput, gpu: Gpu, node: ir.Node, dtype: DType) -> str:
    """Why the builder has no convolution kernel of this type; empty if it has one, or if another rule reports it."""
    if dtype is DType.S8 and not gpu.has_int8_conv:
        return f"{gpu.name} has no INT8 convolution"
    if dtype is DType.F8E4M3 and gpu.has_large_fp8_depthwise and _is_depthwise(node):
        return ""
    for signature in subject.table.ops["Conv"].signatures:
        if signature.inputs[0].encoding.dtype is dtype and signature.when is not None:
            return signature.when(node)
    return ""


def _is_depthwise(node: ir.Node) -> bool:
    """Whether every input channel is a group: not with one channel, which runs as any other convolution."""
    shape, groups = shape_of(node.inputs[1]), int(attribute(node, "group", 1))
    return groups > 1 and shape is not None and shape[:2] == (groups, 1)
