"""Q4 on HTP: linear layers written in a way that fails with another tool, or takes longer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_op, shape_of, sole_consumer
from dovetail.model.place import at_node
from dovetail.plan.constraints import op_key
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation, operations, say
from dovetail.rules.rule import rule

_MATRIX_RANK = 2


@rule("Q403")
def batched_linear_as_matmul(subject: CheckInput) -> Iterator[Finding]:
    """A quantized linear layer of a model with windows or a batch is a MatMul of rank 3 or more.

    ## What it finds
    In QDQ models: MatMul with a quantized weight matrix and activations of rank 3 or more, with or without an Add of
    its bias, if the first dimension is above 1 in at least one of them, as in the windowed layers of DINOv2 in RF-DETR
    ([4, 257, 384]). One finding per model, at the first layer with such a dimension; the number has all layers of rank
    3 or more, also those over [1, 1028, 384] between the windowed ones.

    A model whose layers all have a first dimension of 1 is not reported: nothing is known to fail there, and every
    transformer would be. Nor is a Gemm, or a MatMul of rank 2.

    ## Why it matters
    This is a note about a different tool, and rests on one public report: Qualcomm's offline converter failed on this
    model when it finalized the graph, with a message that names no layer of the model: `could not create op:
    q::linearclip`, input type `QuantUint16_5D_TCM` or `QuantUint8_5D_TCM`. Keeping the failing layers in float moved
    the failure to others, of both kinds. Whether the windows, the MatMul or something else is the cause is not known.
    The QNN execution provider, which `dovetail fit` uses, translates the layer to a FullyConnected, which compiles.

    ## How to fix it
    Nothing, if the model compiles. Otherwise compile with the execution provider, or write the layers as Reshape to
    [rows, channels], Gemm and Reshape, which is what the provider translates them to; `dovetail fit` does this.

    ## Seen on
    - qairt: QAIRT 2.41, qnn-onnx-converter, HTP v73, `vtcm_mb` 8, `O` 3, from a public report on RF-DETR Small
      quantized W8A16 and W8A8 with AIMET: the context binary generator fails as above. Not verified here, because the
      converter is not public.
    - qnn-htp: onnxruntime-qnn with QAIRT 2.47 to 2.51, v73, v75 and v79: the same blocks compile; not reproduced. The
      cases below are compiled in the tests with 2.7.0 (QAIRT 2.51.0) and agree with the simulation.
    """
    layers = [(operation, shape_of(operation.node.inputs[0]) or ()) for operation in _stacked_layers(subject)]
    windows = [(operation.node, shape) for operation, shape in layers if shape[0] > 1]
    if windows:
        node, shape = windows[0]
        yield Finding(
            "Q403",
            at_node(node),
            f"{len(layers)} linear layers are MatMuls of rank 3 or more; the first with windows is {say(node)}, over "
            f"{'x'.join(map(str, shape))}: it compiles with the execution provider; one public report, not reproduced "
            "here, says that an offline converter rejects such a model (QAIRT 2.41, q::linearclip)",
            Severity.NOTE,
            {"layers": float(len(layers))},
            "if the offline converter fails, write it as Reshape to [rows, channels], Gemm and Reshape",
        )


def _stacked_layers(subject: CheckInput) -> list[Operation]:
    """The quantized linear layers, with or without an Add of their bias, whose activations have rank 3 or more."""
    return [
        operation
        for operation in operations(subject)
        if operation.in_integers
        and _is_matrix_product(operation)
        and len(shape_of(operation.node.inputs[0]) or ()) > _MATRIX_RANK
    ]


def _and_more(count: int) -> str:
    return "" if count == 1 else f" and {count - 1} more"


@rule("Q407")
def bias_in_separate_add(subject: CheckInput) -> Iterator[Finding]:
    """A quantized linear layer is a MatMul, a Q/DQ pair and an Add of its bias.

    ## What it finds
    In QDQ models: MatMul by a constant matrix whose output has a Q/DQ pair and is only read by an Add of a constant
    with one value per output channel, of shape [N] or [1, 1, N]. One finding per model, at the first such layer, with
    their number.

    ## Why it matters
    The bias could be added to the int32 accumulator of the layer at no cost. Instead the output is rounded twice, and
    the Add is an operator of its own, which reads and writes the whole tensor.

    ## How to fix it
    Remove the Q/DQ pair between the two and quantize the bias, with shape [N], to int32 with scale = input scale x
    weight scale; or write both as one Gemm. `dovetail fit` and `dovetail repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 52, vendor's estimates of two layers in w8a16
      (`python -m bench.htp_patterns`): 251 us on [1, 256, 192], 156 with an int32 bias; 1098 and 679 us on
      [4, 257, 384]. The cases below, on [4, 257, 16]: 21 us with a bias of shape [16] or [1, 1, 16], 15 without the
      Q/DQ pair.
    """
    layers = [operation for operation in operations(subject) if operation.in_integers and _has_separate_bias(operation)]
    if layers:
        yield Finding(
            "Q407",
            at_node(layers[0].node),
            f"{say(layers[0].node)}{_and_more(len(layers))} has a Q/DQ pair before the Add of its bias, which is "
            "then an operator of its own",
            Severity.NOTE,
            {"layers": float(len(layers))},
            "remove the Q/DQ pair between MatMul and Add and quantize the bias, with one dimension, to int32; "
            "`dovetail repair` does this",
        )


@rule("Q408")
def attention_scaled_on_query_and_key(subject: CheckInput) -> Iterator[Finding]:
    """Both operands of a MatMul of two activations are multiplied by a number.

    ## What it finds
    In QDQ models: MatMul of two activations, each of which is the output of a Mul by a constant with one element, also
    after operators that only move data. Exporters write attention in this way: Q and K are multiplied by the square
    root of the scale each. One finding per model, at the first such MatMul, with their number.

    ## Why it matters
    Both Muls are operators of their own, which read and write a whole tensor and round it. One Mul of the scores takes
    no additional time.

    ## How to fix it
    Multiply the scores by the product of both numbers, or multiply the weights and biases of the linear layers of Q and
    K before the model is quantized. `dovetail fit` writes attention in one form, with a single scale.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 52, vendor's estimates in w8a16 (`python -m
      bench.htp_patterns`): attention of 3 heads and 197 tokens 67 us, with both Muls 76 us; 24 heads and 257 tokens 499
      and 548 us. After linear layers and a Transpose: 3 heads and 197 tokens 67, 6 and 257 170, 12 and 577 1496 us;
      with both Muls 82, 194 and 2110 us; with one on Q 78, 177 and 1801 us; with one on the scores 67, 170 and 1496 us.
    """
    found = [operation for operation in operations(subject) if operation.in_integers and _is_scaled_twice(operation)]
    if found:
        yield Finding(
            "Q408",
            at_node(found[0].node),
            f"{say(found[0].node)}{_and_more(len(found))} reads two operands, each of which is multiplied by a number",
            Severity.NOTE,
            {"operators": float(len(found))},
            "multiply the output of the MatMul instead, or the weights of the layers before it",
        )


def _is_scaled_twice(operation: Operation) -> bool:
    """Whether it is a MatMul of two activations that are both outputs of a Mul by a number."""
    if operation.op != "MatMul" or len(operation.activations) != 2:
        return False
    return all(_is_multiplied(operand.value) for operand, _ in operation.inputs)


def _is_multiplied(value: ir.Value) -> bool:
    """Whether a tensor is the output of a Mul by a constant with one element, perhaps after data movement."""
    producer = value.producer()
    while producer is not None and op_key(producer) in DATA_MOVEMENT_OPS and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    if producer is None or not is_op(producer, "Mul"):
        return False
    return any((factor := constant_of(source)) is not None and factor.size == 1 for source in producer.inputs)


def _has_separate_bias(operation: Operation) -> bool:
    """Whether a layer by a constant matrix has a quantized output that only an Add of one value per channel reads."""
    add = sole_consumer(operation.node.outputs[0]) if _is_linear(operation) else None
    if add is None or not is_op(add, "Add"):
        return False
    shapes = [shape_of(value) or () for value in add.inputs if value is not None and value.const_value is not None]
    channels = (shape_of(operation.node.inputs[1]) or (0,))[-1]
    if len(shapes) != 1 or not shapes[0]:
        return False
    return shapes[0][-1] == channels == math.prod(shapes[0])


def _is_linear(operation: Operation) -> bool:
    """Whether it is a MatMul, without an Add, by a quantized constant matrix."""
    return operation.op == "MatMul" and _is_matrix_product(operation)


def _is_matrix_product(operation: Operation) -> bool:
    """Whether it is a MatMul by a quantized constant matrix, with or without an Add of its bias."""
    weight = operation.input_at(1)
    if not is_op(operation.node, "MatMul") or weight is None or not weight[0].constant:
        return False
    return isinstance(weight[1], QParams) and len(shape_of(weight[0].value) or ()) == _MATRIX_RANK
