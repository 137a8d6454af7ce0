"""Q1 on XNNPACK: types, zero points and Q/DQ pairs that its lowering or its runtime rejects, or ignores."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encoding import DType, Granularity, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node, at_tensor
from dovetail.plan.blocks import WEIGHT
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import LINEAR, Operation, dtype_text, operations, say
from dovetail.rules.rule import rule

_CONVOLUTIONS = ("Conv", "ConvTranspose")


@rule("Q132")
def unsigned_quantization(subject: CheckInput) -> Iterator[Finding]:
    """Activations or constants are quantized to uint8, which XNNPACK does not support.

    ## What it finds
    In QDQ models: tensors in uint8, the default type of activations in ONNX Runtime's quantizer, also if only one
    operator reads a tensor in uint8. There is one finding for activations and one for constants, at the first such
    tensor, with the number of tensors.

    ## Why it matters
    XNNPACK's 8-bit type is int8 with a zero point. A single uint8 activation, between any two operators, and the
    lowering ends with an error that names no tensor. uint8 constants pass the lowering with one scale, but their bytes
    are taken for int8: with a zero point above 127 the program is rejected when it is loaded, otherwise it runs and
    values above 127 wrap around, so that the outputs are wrong. With a scale per channel the lowering fails.

    ## How to fix it
    `dovetail repair` shifts them to int8: the scale stays, 128 is subtracted from the zero point, so the same values
    are represented. No calibration data is needed. Or quantize with `activation_type=QuantType.QInt8`.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64: MatMul, Conv, Add, Relu, Sigmoid and Transpose with a uint8
      input, output or both: "Missing out variants: {'quantized_decomposed::quantize_per_tensor', ...}". uint8 constants
      with zero point 128 or more, of MatMul, Conv, Concat, Add, Mul and Sub: "Failed to define tensor 2 with code:
      xnn_status_invalid_parameter" at load; with zero point 3 Add, Mul and Sub compute with 200 as -56. Per channel:
      "Unable to resolve static quantized tensor dtype". The cases below are lowered in the tests, and a uint8 model is
      lowered as given and repaired (tests/backends/xnnpack/test_repair.py).
    """
    if subject.plan is None:
        return
    choices = subject.plan.tensors
    read = dict.fromkeys(
        operand
        for operation in operations(subject)
        for operand, storage in operation.inputs
        if storage.dtype is DType.U8
    )
    constants = dict.fromkeys(operand.value for operand in read if operand.constant)
    on_edges = {operand.value for operand in read if not operand.constant}
    values = (*subject.model.graph.inputs, *(output for node in subject.model.graph for output in node.outputs))
    activations = [
        value
        for value in values
        if value in on_edges or (value.name in choices and choices[str(value.name)].storage.dtype is DType.U8)
    ]
    effects = {"activations": "the model cannot be lowered", "constants": "it rejects them, or reads them as int8"}
    for kind, tensors in (("activations", activations), ("constants", [*constants])):
        if tensors:
            yield Finding(
                "Q132",
                at_tensor(tensors[0]),
                f"{len(tensors)} {kind} are uint8, the first is {str(at_tensor(tensors[0]))!r}, but XNNPACK has only "
                f"int8: {effects[kind]}",
                Severity.ERROR,
                {"tensors": float(len(tensors))},
                "`dovetail repair` shifts them to int8, with the same scales and values",
            )


@rule("Q133")
def asymmetric_weight(subject: CheckInput) -> Iterator[Finding]:
    """A weight is int8 with a zero point other than 0.

    ## What it finds
    In QDQ models: int8 weights of Conv, ConvTranspose, Gemm and MatMul with a zero point other than 0. There is one
    finding for weights with one scale and one for weights with a scale per channel, at the first such layer, with the
    number of layers.

    ## Why it matters
    XNNPACK's weights are symmetric. With one scale the program is rejected when it is loaded. With a scale per channel
    nothing is reported, and the zero points are ignored: the layer computes with other weights.

    ## How to fix it
    Quantize weights symmetrically (`dovetail repair` does this, with the given scales, or larger ones where the
    weights would exceed int8), or fit the float model.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64: with one scale "Failed to create linear node" or
      convolution "with code: xnn_status_invalid_parameter" at load. Per channel the program loads, its layers are
      read back as qcint8, and the outputs are those of zero point 0: at 1.5 dB against the simulation for a MatMul with
      zero points of 20, at 21 dB with a zero point of 4 in one of 8 channels, at 8 dB for a Conv; without zero points
      they are equal. The cases below are run in the tests.
    """
    by_kind: dict[bool, list[Operation]] = {False: [], True: []}
    for operation in operations(subject):
        weight = _weight(operation)
        if weight is not None and weight.dtype is DType.S8 and weight.zero_point.any():
            by_kind[weight.encoding.granularity is not Granularity.TENSOR].append(operation)
    for per_channel, layers in by_kind.items():
        if layers:
            effect = "ignores their zero points" if per_channel else "rejects the program when it is loaded"
            scales = "scales per channel" if per_channel else "one scale"
            yield Finding(
                "Q133",
                at_node(layers[0].node),
                f"{len(layers)} layers have int8 weights with {scales} and zero points other than 0, the first is "
                f"{say(layers[0].node)}: XNNPACK {effect}",
                Severity.ERROR,
                {"layers": float(len(layers))},
                "quantize weights symmetrically: `dovetail repair` does this",
            )


@rule("Q134")
def layer_with_float_input_or_output(subject: CheckInput) -> Iterator[Finding]:
    """A layer with a quantized weight has a float input or output, and XNNPACK has no such kernel.

    ## What it finds
    In QDQ models: Conv and ConvTranspose with a quantized weight and a float input or output, and Gemm and MatMul like
    this whose weight has one scale. The output is that of a Relu or Clip that is fused with the layer. A Gemm or MatMul
    whose weight has a scale per channel is not reported: XNNPACK quantizes the rows of its input at run time. There is
    one finding for layers that cannot be lowered and one for those that are left to the portable kernels, at the first
    such layer, with the number of layers.

    ## Why it matters
    The partitioner takes the layer only between a dequantize and a quantize. A Gemm or MatMul then cannot be lowered,
    nor can a Conv with scales per channel. A Conv with one scale is left to the portable kernels, beside a weight that
    is dequantized again at every run, and gave wrong outputs.

    ## How to fix it
    Quantize the input and the output of the layer as well, or leave its weight in float. For Gemm and MatMul a weight
    with a scale per channel is enough. `dovetail repair` makes it so.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64: "Missing out variants:
      {'quantized_decomposed::quantize_per_token', ...}" for a MatMul with one scale and a float input or output, the
      same with dequantize_per_channel for a Conv; a Conv with one scale is not delegated ("Expected output node to have
      a dequantized node"), and its outputs were all zero. The cases below are lowered in the tests.
    """
    by_kind: dict[bool, list[tuple[Operation, str]]] = {True: [], False: []}
    for operation in operations(subject):
        weight, source = _weight(operation), operation.input_at(0)
        if weight is None or source is None or not operation.outputs:
            continue
        sides = {"input": source[1], "output": operation.outputs[0]}
        in_float = [side for side, storage in sides.items() if not isinstance(storage, QParams)]
        is_convolution = operation.op in _CONVOLUTIONS
        is_dynamic = not is_convolution and weight.encoding.granularity is Granularity.AXIS
        if not in_float or is_dynamic:
            continue
        is_lowered = is_convolution and weight.encoding.granularity is Granularity.TENSOR
        what = f"{say(operation.node)} with a weight in {dtype_text(weight)} and its {' and '.join(in_float)} in float"
        by_kind[not is_lowered].append((operation, what))
    for is_rejected, layers in by_kind.items():
        if layers:
            first, what = layers[0]
            effect = "the model cannot be lowered" if is_rejected else "they are left to the portable kernels"
            yield Finding(
                "Q134",
                at_node(first.node),
                f"{len(layers)} layers have a quantized weight and a float input or output, the first is {what}: "
                f"XNNPACK has no such kernel, {effect}",
                Severity.ERROR,
                {"layers": float(len(layers))},
                "quantize their inputs and outputs too (`dovetail repair`), or leave the weights in float",
            )


def _weight(operation: Operation) -> QParams | None:
    """The qparams of a layer's constant weight; None for other operators and float weights."""
    operand = operation.input_at(WEIGHT) if operation.op in LINEAR else None
    if operand is None or not operand[0].constant or not isinstance(operand[1], QParams):
        return None
    return operand[1]
