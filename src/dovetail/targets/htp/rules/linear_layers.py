"""Q4 on HTP: linear layers written in a way that fails with another tool, or takes longer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op, shape_of, sole_consumer
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation, operations, say
from dovetail.rules.rule import rule


@rule("Q403")
def batched_linear_as_matmul(subject: CheckInput) -> Iterator[Finding]:
    """A quantized linear layer with a batch or windows is a MatMul of rank 3 or more.

    ## What it finds
    In QDQ models: MatMul with a quantized weight matrix whose activations have rank 3 or more and a first dimension
    above 1, as in the windowed layers of DINOv2 in RF-DETR ([4, 257, 384]). One finding per model, at the first such
    layer.

    ## Why it matters
    This is a note about a different tool: Qualcomm's offline converter has failed on such layers when it finalizes the
    graph, with a message that names no layer of the model: `could not create op: q::linearclip`, input type
    `QuantUint16_5D_TCM` or `QuantUint8_5D_TCM`. Keeping the failing layers in float moves the failure to other layers.
    The QNN execution provider, which `dovetail fit` uses, translates the layer to a FullyConnected, which compiles.

    ## How to fix it
    Compile with the execution provider, or write the layer as Reshape to [rows, channels], Gemm and Reshape, which is
    what the provider translates it to; `dovetail fit` does this.

    ## Seen on
    - qairt: QAIRT 2.41, qnn-onnx-converter, HTP v73, `vtcm_mb` 8, `O` 3, from a public report on RF-DETR Small
      quantized W8A16 and W8A8 with AIMET: the context binary generator fails as above. Not verified here, because the
      converter is not public.
    - qnn-htp: onnxruntime-qnn with QAIRT 2.47 to 2.51, v73, v75 and v79: the same blocks compile; not reproduced. The
      case below is compiled in the tests with 2.7.0 (QAIRT 2.51.0) and agrees with the simulation.
    """
    layers = [operation for operation in operations(subject) if operation.in_integers and _is_batched_linear(operation)]
    if layers:
        node, shape = layers[0].node, shape_of(layers[0].node.inputs[0]) or ()
        yield Finding(
            "Q403",
            at_node(node),
            f"{say(node)}{_and_more(len(layers))} is a MatMul over {'x'.join(map(str, shape))}: it compiles with the "
            "execution provider, but an offline converter rejects it (QAIRT 2.41, q::linearclip)",
            Severity.NOTE,
            {"layers": float(len(layers))},
            "for the offline converter, write it as Reshape to [rows, channels], Gemm and Reshape",
        )


def _and_more(count: int) -> str:
    return "" if count == 1 else f" and {count - 1} more"


def _is_batched_linear(operation: Operation) -> bool:
    shape = shape_of(operation.node.inputs[0])
    return _is_linear(operation) and shape is not None and len(shape) > 2 and shape[0] > 1


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
            f"{say(layers[0].node)}{_and_more(len(layers))} has a Q/DQ pair in front of the Add of its bias, which is "
            "then an operator of its own",
            Severity.NOTE,
            {"layers": float(len(layers))},
            "remove the Q/DQ pair between MatMul and Add and quantize the bias, with one dimension, to int32; "
            "`dovetail repair` does this",
        )


def _has_separate_bias(operation: Operation) -> bool:
    """Whether a layer by a constant matrix has a quantized output that only an Add of one value per channel reads."""
    add = sole_consumer(operation.node.outputs[0]) if _is_linear(operation) else None
    if add is None or not is_op(add, "Add"):
        return False
    shapes = [shape_of(value) or () for value in add.inputs if value is not None and value.const_value is not None]
    channels = (shape_of(operation.node.inputs[1]) or ())[-1:]
    return [(shape[-1:], (math.prod(shape),)) for shape in shapes] == [(channels, channels)]


def _is_linear(operation: Operation) -> bool:
    """Whether it is a MatMul, without an Add, by a quantized constant matrix."""
    weight = operation.input_at(1)
    if operation.op != "MatMul" or weight is None or not weight[0].constant or not isinstance(weight[1], QParams):
        return False
    return len(shape_of(weight[0].value) or ()) == 2
