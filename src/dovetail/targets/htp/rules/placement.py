"""Q4 on HTP: biases, Q/DQ pairs and layers in unsupported positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node, at_tensor
from dovetail.plan.constraints import Operand
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import BIAS_INPUT, Operation, dtype_text, operations, original_name, say
from dovetail.rules.rule import rule
from dovetail.storage import Plan

_WITH_BIAS = frozenset(("Conv", "ConvTranspose", "Gemm"))
_INT32_CONSUMERS = _WITH_BIAS | {"BatchNormalization", "InstanceNormalization", "LayerNormalization"}


@rule("Q401")
def unsupported_bias_quantization(subject: CheckInput) -> Iterator[Finding]:
    """int32 is used outside a bias input, or a Conv/Gemm bias is quantized to another dtype than int32.

    ## What it finds
    In QDQ models: int32 constants that are not at the bias input of Conv, ConvTranspose, Gemm or a normalization, most
    often on an Add after the Q/DQ pair of a MatMul; and bias inputs that are quantized to uint8 or uint16. An Add
    directly after a MatMul with a quantized weight, without a Q/DQ pair between them, is allowed: the two are fused.

    ## Why it matters
    HTP supports int32 only as a bias that is added to an accumulator. A separate DequantizeLinear from int32 is
    rejected (QNN error 3110, or "standalone DQ op with per-channel quantization"). With a bias of a different dtype the
    layer has no integer kernel: it runs in float, or is rejected because its per-channel weight cannot be dequantized
    on its own.

    ## How to fix it
    Combine MatMul and Add into one Gemm with an int32 bias, with scale = input scale x weight scale; `dovetail fit`
    does this. Or quantize the constant of the separate Add to the dtype of its other operand.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: an int32 bias with per-tensor or per-channel scales on an
      Add after a Q/DQ pair is rejected; the same Add without the pair, and a Gemm with the bias, compile to one
      FullyConnected. Gemm and Conv with per-channel weights and a uint16 bias are rejected; with a per-tensor
      weight scale they run in float.
    """
    for operation in operations(subject):
        for operand, storage in operation.inputs:
            if not operand.constant or not isinstance(storage, QParams):
                continue
            is_bias = operation.op in _WITH_BIAS and operand.slot == BIAS_INPUT
            if storage.dtype is DType.S32 and operation.op not in _INT32_CONSUMERS:
                yield _int32_without_accumulator(operation, operand)
            elif is_bias and storage.dtype is not DType.S32:
                yield _bias_not_int32(operation, operand, dtype_text(storage))


def _int32_without_accumulator(operation: Operation, operand: Operand) -> Finding:
    name = original_name(operand)
    return Finding(
        "Q401",
        at_node(operation.node, operand.edge),
        f"{say(operation.node)} has the int32 input {name!r}, which HTP supports only as the bias of Conv, Gemm or a "
        "normalization",
        Severity.ERROR,
        fix=f"combine it with its MatMul into one Gemm, or quantize {name!r} to the dtype of the other operand",
    )


def _bias_not_int32(operation: Operation, operand: Operand, dtype: str) -> Finding:
    name = original_name(operand)
    rejected = operation.needs_integer_kernel
    effect = "rejects it, because its weight has per-channel scales" if rejected else "runs it in float"
    return Finding(
        "Q401",
        at_node(operation.node, operand.edge),
        f"{say(operation.node)} has the bias {name!r} in {dtype} instead of int32: HTP {effect}",
        Severity.ERROR if rejected else Severity.WARNING,
        fix=f"quantize {name!r} to int32 with scale = input scale x weight scale, or keep it in float",
    )


@rule("Q402")
def qdq_pair_removed_by_compiler(subject: CheckInput) -> Iterator[Finding]:
    """A Q/DQ pair has no effect, because the compiler removes it.

    ## What it finds
    In QDQ models: Q/DQ pairs whose producer is a float operator or a graph input and whose consumers are float
    operators, also after Reshape, Transpose and other operators that only move data; a Q/DQ pair directly between a
    graph input and a graph output; and a second Q/DQ pair of the same dtype directly after a first one that has no
    other consumer.

    ## Why it matters
    The simulation rounds and clips at the Q/DQ pair, the compiled graph does not. Clipping to a range, or a
    quantization whose accuracy was measured, is not part of what ships. The pair is still in the dumped graph; only the
    outputs show that the compiler removed it.

    ## How to fix it
    Quantize a neighboring operator as well, so that it runs in integers, or remove the Q/DQ pair. If values must be
    clipped, use a Clip.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated and compared with the simulation: uint8 Q/DQ pairs
      with scale 0.5 between float operators, or alone in a graph, agree to 15 to 16 dB, the error of the missing
      rounding; with a quantized operator on one side, or between a float operator and a graph output, above 130 dB.
    - onnxruntime 1.31.1: a uint16 Q/DQ pair directly after a uint16 pair with a different scale is merged into it
      before the provider sees the graph (16 dB). It is kept if the first pair has a second consumer or a different
      dtype.
    """
    plan = subject.plan
    if plan is None:
        return
    all_operations = list(operations(subject))
    producers = {value.name: operation for operation in all_operations for value in operation.unit.outputs}
    consumers: dict[str, list[Operation]] = {}
    for operation in all_operations:
        for operand, _ in operation.inputs:
            consumers.setdefault(operand.name, []).append(operation)
    graph = subject.model.graph
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        choice = plan.tensors.get(value.name or "")
        if choice is None or not isinstance(choice.storage, QParams):
            continue
        producer, computing = producers.get(value.name), list(_computing_consumers(value, consumers))
        neighbors = computing if producer is None else [producer, *computing]
        if not any(operation.in_integers or _moves_constant(operation) for operation in neighbors) and (
            computing or producer is None
        ):
            yield _removed(value, "has no quantized operator next to it: the compiler removes it")
        elif _is_followed_by_pair(value, choice.storage, consumers.get(value.name or "", []), plan):
            dtype = dtype_text(choice.storage)
            yield _removed(
                value, f"is followed by a second Q/DQ pair in {dtype}: onnxruntime merges the second into it"
            )


def _moves_constant(operation: Operation) -> bool:
    """Whether an operator reads only quantized constants, as a Resize of a constant mask: it has an integer kernel."""
    stored = (*operation.constants, *operation.outputs)
    return not operation.activations and bool(operation.constants) and all(isinstance(s, QParams) for s in stored)


def _computing_consumers(value: ir.Value, consumers: Mapping[str, list[Operation]]) -> Iterator[Operation]:
    """The consumers of a tensor, looking through float operators that only move data."""
    for operation in consumers.get(value.name or "", []):
        if operation.op in DATA_MOVEMENT_OPS and not operation.in_integers:
            for output in operation.unit.outputs:
                yield from _computing_consumers(output, consumers)
        else:
            yield operation


def _is_followed_by_pair(value: ir.Value, params: QParams, consumers: list[Operation], plan: Plan) -> bool:
    """Whether the only consumer of a tensor reads it through a second Q/DQ pair of the same dtype."""
    if len(consumers) != 1 or value.is_graph_output():
        return False
    inputs = [(operand.edge, storage) for operand, storage in consumers[0].inputs if operand.value is value]
    if len(inputs) != 1 or inputs[0][0] not in plan.edges:
        return False
    second = inputs[0][1]
    return isinstance(second, QParams) and second.dtype is params.dtype and second != params


def _removed(value: ir.Value, reason: str) -> Finding:
    name = origin_of(value).name
    return Finding(
        "Q402",
        at_tensor(value),
        f"the Q/DQ pair on {name!r} {reason}, so only the simulation rounds there",
        Severity.WARNING,
        fix=f"quantize the operators around {name!r} as well, or remove the Q/DQ pair",
    )


@rule("Q404")
def relu_not_fused_at_this_zero_point(subject: CheckInput) -> Iterator[Finding]:
    """A Relu cannot be fused with the Conv or Gemm before it, because of the zero point of its output.

    ## What it finds
    In QDQ models: Conv -> Relu and Gemm -> Relu with quantized weights, where only the output of the Relu is quantized
    and its zero point is not the lowest integer. Tools do this where the output of the Relu shares its scale with a
    tensor that has negative values, as in a Concat, and where they quantize activations symmetrically.

    ## Why it matters
    The provider drops the Relu if quantizing clamps at zero as well, which needs the lowest integer as zero point.
    Otherwise the two are not fused: the output of the Conv is not quantized, so it would run in float, and its weights
    are rejected ("QNN EP does not support a standalone DQ op with per-channel quantization").

    ## How to fix it
    Insert a Q/DQ pair between the two with the scale and zero point of the output: it changes no value. Or give the
    output its own range from zero on, and convert it where it is merged. `dovetail repair` does the first.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: Conv and Gemm with uint8 and uint16
      activations are rejected; with the Q/DQ pair they agree with the simulation to 44 to 82 dB.
    """
    plan = subject.plan
    for operation in operations(subject) if plan is not None else ():
        chain, output = operation.unit.chain, operation.outputs[0] if operation.outputs else None
        if plan is None or chain is None or not chain.at_lowest or not isinstance(output, QParams):
            continue
        inside = plan.tensors.get(operation.node.outputs[0].name or "")
        apart = inside is not None and isinstance(inside.storage, QParams)
        if not apart and operation.needs_integer_kernel and int(output.zero_point) != output.dtype.grid.low:
            name = origin_of(operation.unit.outputs[0]).name
            yield Finding(
                "Q404",
                at_node(operation.node),
                f"{say(operation.node)} and its {operation.unit.nodes[-1].op_type} cannot be fused, because "
                f"{name!r} has the zero point {int(output.zero_point)} instead of {output.dtype.grid.low}",
                Severity.ERROR,
                fix=f"insert a Q/DQ pair with the scale and zero point of {name!r} between them",
            )


@rule("Q405")
def float_where_in_integers(subject: CheckInput) -> Iterator[Finding]:
    """A Where that the model leaves in float runs in integers, because of a Q/DQ pair further down.

    ## What it finds
    In QDQ models: a Where of a quantized tensor and a float scalar, whose output has no Q/DQ pair, but only goes
    through Reshape, Transpose, Squeeze, Unsqueeze, Slice or MaxPool to one. One finding for each of these operators.

    ## Why it matters
    onnxruntime moves the QuantizeLinear to the output of the Where and quantizes the scalar with a scale of its own;
    then the provider compiles all of them in integers. The outputs are those of the simulation, but what was meant to
    be a float operator is none, and the scale of its output is that of the Q/DQ pair.

    ## How to fix it
    Nothing, if integers are welcome; a Q/DQ pair directly after the Where, and one on its scalar, say the same
    explicitly. If the Where must be in float, put an operator that computes between it and the Q/DQ pair.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graphs: RF-DETR as onnxruntime's quantizer exports
      it, which leaves the output of `masked_fill(mask, 0)` in float, in w8a16 and in w8a8; a scalar of 100 beside a
      range of 3.3 agrees with the simulation to 92 dB.
    """
    by_input: dict[str, list[Operation]] = {}
    for operation in operations(subject):
        for name in dict.fromkeys(operand.name for operand, _ in operation.inputs):
            by_input.setdefault(name, []).append(operation)
    for operation in operations(subject):
        for member in _moved_to_where(operation, by_input):
            yield Finding(
                "Q405",
                at_node(member.node),
                f"{say(member.node)} runs in integers, although the output of {say(operation.node)} is not quantized",
                Severity.WARNING,
                fix=f"quantize the output of {operation.node.op_type} and its scalar explicitly",
            )


def _moved_to_where(operation: Operation, by_input: Mapping[str, list[Operation]]) -> list[Operation]:
    """A Where and the operators after it through which onnxruntime moves a Q; empty if it moves none."""
    if operation.op != "Where" or not _selects_scalar(operation):
        return []
    chain = [operation]
    while not any(isinstance(storage, QParams) for storage in chain[-1].outputs):
        if any(value.is_graph_output() for value in chain[-1].unit.outputs):
            return []
        readers = [reader for value in chain[-1].unit.outputs for reader in by_input.get(value.name or "", [])]
        support = readers[0].unit.support if len(readers) == 1 else None
        if support is None or not support.quantized_early:
            return []
        chain.append(readers[0])
    return chain if len(chain) > 1 else []


def _selects_scalar(operation: Operation) -> bool:
    """Whether it selects between a quantized tensor and a float scalar."""
    branches = [entry for index in (1, 2) if (entry := operation.input_at(index)) is not None]
    scalars = [o for o, s in branches if o.constant and not isinstance(s, QParams) and shape_of(o.value) in ((), (1,))]
    return bool(scalars) and any(isinstance(s, QParams) for o, s in branches if not o.constant)
