"""Q4 on HTP: where a bias, a pair or a layer stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import shape_of
from dovetail.model.movers import MOVERS
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node, at_tensor
from dovetail.plan.constraints import Operand
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import BIAS_INPUT, Operation, named, operations, say, words
from dovetail.rules.rule import rule
from dovetail.storage import Plan

_BIASED = frozenset(("Conv", "ConvTranspose", "Gemm"))
_INT32_READERS = _BIASED | {"BatchNormalization", "InstanceNormalization", "LayerNormalization"}


@rule("Q401")
def bias_outside_accumulator(subject: CheckInput) -> Iterator[Finding]:
    """A bias is int32 on an operator of its own, or is part of a linear layer and not int32.

    ## What it finds
    In QDQ models: int32 constants that anything but the bias input of Conv, ConvTranspose, Gemm or a normalization
    reads, above all an Add behind the pair of a MatMul; and bias inputs that are stored as uint8 or uint16. An Add
    directly on the float product of a MatMul by an integer weight is not found: the two become one layer.

    ## Why it matters
    int32 exists on HTP only inside of an accumulator: read back on its own it is refused (3110, or "standalone DQ op
    with per-channel quantization"). A bias of another dtype keeps the layer out of the integers: it runs in float, or
    is refused because its per-channel weight would have to be read back alone.

    ## How to fix it
    Make MatMul and Add one Gemm with an int32 bias of scale = input scale x weight scale; `dovetail fit` does so. Or
    store the constant of the separate Add like its other operand.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: int32 bias, one scale or one per channel, on an Add behind
      a pair is refused; the same Add without the pair between, and a Gemm with it, compile to one FullyConnected. Gemm
      and Conv with per-channel weights and a uint16 bias are refused, with one weight scale they run in float.
    """
    for operation in operations(subject):
        for operand, storage in operation.inputs:
            if not operand.constant or not isinstance(storage, QParams):
                continue
            is_bias = operation.op in _BIASED and operand.slot == BIAS_INPUT
            if storage.dtype is DType.S32 and operation.op not in _INT32_READERS:
                yield _alone(operation, operand)
            elif is_bias and storage.dtype is not DType.S32:
                yield _other(operation, operand, words(storage))


def _alone(operation: Operation, operand: Operand) -> Finding:
    return Finding(
        "Q401",
        at_node(operation.node, operand.edge),
        f"{say(operation.node)} reads {named(operand)!r} as int32, which HTP takes only as the bias of a linear layer",
        Severity.ERROR,
        fix=f"make it one Gemm with its MatMul, or store {named(operand)!r} like the other operand",
    )


def _other(operation: Operation, operand: Operand, dtype: str) -> Finding:
    then = "refuses it, because its weight has a scale per channel" if operation.stranded else "runs it in float"
    return Finding(
        "Q401",
        at_node(operation.node, operand.edge),
        f"{say(operation.node)} has its bias {named(operand)!r} as {dtype} and not as int32: HTP {then}",
        Severity.ERROR if operation.stranded else Severity.WARNING,
        fix=f"store {named(operand)!r} as int32 with scale = input scale x weight scale, or leave it in float",
    )


@rule("Q402")
def pair_that_is_elided(subject: CheckInput) -> Iterator[Finding]:
    """A Q/DQ pair stands where the compiler takes it away.

    ## What it finds
    In QDQ models: pairs that a float operator or a graph input writes and float operators read, with nothing but layout
    between; a pair with nothing around it but an input and an output; and a second pair of the same dtype directly
    behind a first one that nobody else reads.

    ## Why it matters
    The simulation rounds and cuts off there, the compiled graph does not: a range that clips in the simulation, or a
    grid that was tested for its loss, is not in what ships. The pair is still in the dumped graph; only the numbers
    show that it is gone.

    ## How to fix it
    Store what is around the pair as well, so that an operator runs on its integers, or take the pair away. Where values
    must be cut off, say so with a Clip.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated against the simulation: uint8 pairs with scale 0.5
      between float operators, or alone, agree to 15 to 16 dB, which is the rounding that is missing; with an operator
      on integers on one side, or between a float operator and a graph output, above 130 dB.
    - onnxruntime 1.31.1: a pair of uint16 with another scale behind a pair of uint16 is merged into it before the
      provider sees it (16 dB); behind a pair that a second operator reads, or of another dtype, it stays.
    """
    plan = subject.plan
    if plan is None:
        return
    every = list(operations(subject))
    writers = {value.name: each for each in every for value in each.unit.outputs}
    readers: dict[str, list[Operation]] = {}
    for each in every:
        for operand, _ in each.inputs:
            readers.setdefault(operand.name, []).append(each)
    graph = subject.model.graph
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        choice = plan.tensors.get(value.name or "")
        if choice is None or not isinstance(choice.storage, QParams):
            continue
        writer, users = writers.get(value.name), list(_behind_layout(value, readers))
        around = users if writer is None else [writer, *users]
        if not any(each.in_integers for each in around) and (users or writer is None):
            yield _elided(value, "has float on both sides")
        elif _is_repeated(value, choice.storage, readers.get(value.name or "", []), plan):
            yield _elided(value, f"is followed by another pair of {words(choice.storage)}, which is merged into it")


def _behind_layout(value: ir.Value, readers: Mapping[str, list[Operation]]) -> Iterator[Operation]:
    """The operators that read a value, through those that only move its elements."""
    for each in readers.get(value.name or "", []):
        if each.op in MOVERS and not each.in_integers:
            for output in each.unit.outputs:
                yield from _behind_layout(output, readers)
        else:
            yield each


def _is_repeated(value: ir.Value, params: QParams, users: list[Operation], plan: Plan) -> bool:
    if len(users) != 1 or value.is_graph_output():
        return False
    seen = [(operand.edge, storage) for operand, storage in users[0].inputs if operand.value is value]
    if len(seen) != 1 or seen[0][0] not in plan.edges:
        return False
    other = seen[0][1]
    return isinstance(other, QParams) and other.dtype is params.dtype and other != params


def _elided(value: ir.Value, why: str) -> Finding:
    name = origin_of(value).name
    return Finding(
        "Q402",
        at_tensor(value),
        f"the Q/DQ pair on {name!r} {why}: the compiled graph does not round there, the simulation does",
        Severity.WARNING,
        fix=f"store what is around {name!r} in integers as well, or take the pair away",
    )


@rule("Q403")
def linear_layer_over_windows(subject: CheckInput) -> Iterator[Finding]:
    """A linear layer in integers runs over windows or a batch as a MatMul of rank 3.

    ## What it finds
    In QDQ models: MatMul by an integer matrix of activations of rank 3 or more whose first dimension is above 1, as the
    windowed layers of DINOv2 in RF-DETR have it ([4, 257, 384]). One finding per model, at the first such layer.

    ## Why it matters
    For the record: Qualcomm's offline converter has failed on such layers at finalize, with a message that names no
    layer of the model: `could not create op: q::linearclip`, input type `QuantUint16_5D_TCM` or `QuantUint8_5D_TCM`.
    Keeping the layers that it names in float moves the failure to others. Through the QNN execution provider, which is
    how `dovetail fit` compiles, the layer becomes a FullyConnected and compiles.

    ## How to fix it
    Compile through the execution provider, or write the layer as Reshape to [rows, channels], Gemm and Reshape, which
    says in the file what the provider makes of it; `dovetail fit` does so.

    ## Seen on
    - qairt: QAIRT 2.41, qnn-onnx-converter, HTP v73, `vtcm_mb` 8, `O` 3, from a public report on RF-DETR Small
      quantized W8A16 and W8A8 with AIMET: the context binary generator fails as above. Not seen by us: the converter is
      not public.
    - qnn-htp: onnxruntime-qnn with QAIRT 2.47 to 2.51, v73, v75 and v79: the same blocks compile; not reproduced. The
      case is compiled in the tests with 2.7.0 (QAIRT 2.51.0) and agrees with the simulation.
    """
    layers = [each for each in operations(subject) if each.in_integers and _is_over_windows(each)]
    if layers:
        node, shape = layers[0].node, shape_of(layers[0].node.inputs[0]) or ()
        yield Finding(
            "Q403",
            at_node(node),
            f"{say(node)}{_others(len(layers))} runs over {'x'.join(map(str, shape))} as a MatMul: fine through the "
            "execution provider, refused by an offline converter (QAIRT 2.41, q::linearclip)",
            Severity.NOTE,
            {"layers": float(len(layers))},
            "for the offline converter, write it as Reshape to [rows, channels], Gemm and Reshape",
        )


def _others(count: int) -> str:
    return "" if count == 1 else f" and {count - 1} more"


def _is_over_windows(operation: Operation) -> bool:
    weight = operation.read(1)
    shape = shape_of(operation.node.inputs[0])
    if operation.op != "MatMul" or weight is None or not weight[0].constant or shape is None:
        return False
    matrix = len(shape_of(weight[0].value) or ()) == 2
    return matrix and isinstance(weight[1], QParams) and len(shape) > 2 and shape[0] > 1
