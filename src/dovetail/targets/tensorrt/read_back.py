"""Look up every planned 8-bit operand and every attention block in the layer list of the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack, changed
from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.storage import Plan
from dovetail.targets.tensorrt.coverage import NOT_LISTED, Block, find_blocks
from dovetail.targets.tensorrt.layers import TYPE_NAMES, Layer, Tensor, UnreadableError, parse_layers
from dovetail.targets.tensorrt.unquantized import UnquantizedModel, unquantized

_MATRIX_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
EVIDENCE = "the layer list that the builder printed for the engine, and that of the same graph in float16"

NO_FLOAT16_LIST = "there is no layer list of the same graph in float16 to compare with"
_FLOAT_TYPES = frozenset((TYPE_NAMES[DType.F16], TYPE_NAMES[DType.F32]))
_QUANTIZED_TYPES = frozenset(TYPE_NAMES.values()) - _FLOAT_TYPES
_NO_LAYER = "no layer in the list computes this operator"


def read_layers(emitted: Path, layers: Path, float16_layers: Path, plan: Plan) -> ReadBack:
    """Compare every planned storage with the layer lists; a line in an unknown format leaves all of them unread."""
    try:
        built, in_float16 = (parse_layers(path.read_text()) for path in (layers, float16_layers))
    except UnreadableError as error:
        return ReadBack((), EVIDENCE, unparsed=str(error))
    plain = unquantized(ir.load(emitted))
    return as_planned(plain, find_blocks(plain, built, in_float16), built, plan, EVIDENCE)


def as_planned(
    plain: UnquantizedModel, blocks: tuple[Block, ...], built: tuple[Layer, ...], plan: Plan, evidence: str
) -> ReadBack:
    """Compare every planned storage with layers that are already parsed."""
    nodes = {node.name or "": node for node in plain.model.graph}
    fused = {name for block in blocks if block.as_planned for name in block.nodes}
    tensors = [
        _operand(edge, storage, nodes[edge.node], edge.node in fused, built)
        for edge, choice in plan.edges.items()
        if isinstance(storage := choice.storage, QParams)
    ]
    quantized = {edge.node for edge, choice in plan.edges.items() if isinstance(choice.storage, QParams)}
    in_float = [node for node in nodes.values() if is_op(node, *_MATRIX_OPS) and node.name not in fused | quantized]
    tensors += [_float_op(node, built) for node in in_float]
    tensors += _pinned_to_float(plain.model, built, plan)
    if not quantized and not in_float:
        tensors += _float_outputs(plain.model, built)
    return ReadBack((*tensors, *(row for block in blocks if (row := _attention(block)) is not None)), evidence)


def _float_outputs(model: ir.Model, layers: tuple[Layer, ...]) -> Iterator[TensorReadBack]:
    """The outputs of a graph without matrix operations, in which nothing is quantized: all layers have to be float."""
    quantized = next((layer for layer in layers if not _QUANTIZED_TYPES.isdisjoint(_types(layer))), None)
    for value in model.graph.outputs if layers else ():
        outcome, detail = (
            (Outcome.MATCHED, f"float in all layers, {len(layers)}")
            if quantized is None
            else changed("float", quantized.types, f"computed by {quantized.kind} {quantized.name}")
        )
        yield TensorReadBack(origin_of(value).name, outcome, detail, emitted=str(value.name))


def _types(layer: Layer) -> set[str]:
    return {tensor.dtype for tensor in (*layer.inputs, *layer.constants, *layer.outputs)}


def _pinned_to_float(model: ir.Model, layers: tuple[Layer, ...], plan: Plan) -> Iterator[TensorReadBack]:
    """The tensors that were requested in float, other than those that matrix operations compute."""
    for value in (value for node in model.graph for value in node.outputs):
        choice, producer = plan.tensors.get(value.name or ""), value.producer()
        if choice is None or producer is None or not choice.is_requested_float or is_op(producer, *_MATRIX_OPS):
            continue
        outcome, detail = _float_layers(producer, layers)
        yield TensorReadBack(origin_of(value).name, outcome, detail, emitted=str(value.name))


def _float_layers(node: ir.Node, layers: tuple[Layer, ...]) -> tuple[Outcome, str]:
    """Whether an element-by-element operator is computed in float; its layer may also quantize the result."""
    if is_op(node, *DATA_MOVEMENT_OPS):
        return Outcome.ABSORBED, f"a {node.op_type}, which only moves data"
    of_node = [layer for layer in layers if (node.name or "") in layer.nodes]
    computing = of_node or _layers_after(node, layers)
    if not computing:
        return Outcome.NOT_FOUND, _NO_LAYER
    if attention := next((layer for layer in computing if layer.is_attention), None):
        return Outcome.ABSORBED, f"inside the attention {attention.name}, {attention.types}"
    for layer in computing:
        if _types(layer).isdisjoint(_FLOAT_TYPES):
            return changed("float", layer.types, f"computed by {layer.kind} {layer.name}")
    if of_node:
        return Outcome.MATCHED, f"float in {of_node[0].kind} {of_node[0].name}"
    return Outcome.ABSORBED, f"merged into {computing[0].kind} {computing[0].name}, {computing[0].types}"


def _layers_after(node: ir.Node, layers: tuple[Layer, ...]) -> list[Layer]:
    """The layers of the consumers of a node, also after operators that only move data."""
    found: list[Layer] = []
    for consumer in (user for output in node.outputs for user, _ in output.uses()):
        of_consumer = [layer for layer in layers if (consumer.name or "") in layer.nodes]
        moves = is_op(consumer, *DATA_MOVEMENT_OPS) and not of_consumer
        found += _layers_after(consumer, layers) if moves else of_consumer
    return found


def _float_op(node: ir.Node, layers: tuple[Layer, ...]) -> TensorReadBack:
    """Check that a matrix operation that is not quantized runs in the float type of the file."""
    output = node.outputs[0]
    type_name = TYPE_NAMES[DType.F16 if output.dtype is ir.DataType.FLOAT16 else DType.F32]
    outcome, detail = _float_op_outcome(node, layers, type_name)
    return TensorReadBack(origin_of(output).name, outcome, detail, emitted=str(output.name))


def _float_op_outcome(node: ir.Node, layers: tuple[Layer, ...], type_name: str) -> tuple[Outcome, str]:
    of_node = [layer for layer in layers if (node.name or "") in layer.nodes]
    matrix_layers = [layer for layer in of_node if layer.is_matrix_op]
    two_inputs = constant_of(node.inputs[1]) is None
    for layer in matrix_layers:
        if not _computes_in(layer, type_name, two_inputs) and not _hides_constants(layer, type_name):
            return _other_operands(layer, type_name, two_inputs)
    if matrix_layers:
        return Outcome.MATCHED, f"{type_name} in {matrix_layers[0].kind} {matrix_layers[0].name}"
    if not of_node:
        return Outcome.NOT_FOUND, _NO_LAYER
    return _element_by_element(of_node, type_name, node)


def _element_by_element(layers: list[Layer], type_name: str, node: ir.Node) -> tuple[Outcome, str]:
    """Find the type of a small matrix operation in generated layers by its weight: other tensors may differ."""
    weight = shape_of(node.inputs[1]) if constant_of(node.inputs[1]) is not None else None
    operands = {tensor.dtype for layer in layers for tensor in (*layer.inputs, *layer.constants)}
    constants = [tensor for layer in layers for tensor in layer.constants]
    weight_types = {tensor.dtype for tensor in constants if weight and math.prod(tensor.shape) == math.prod(weight)}
    in_columns = weight is not None and _has_columns(constants, type_name, weight, 0 if is_op(node, "Conv") else -1)
    if operands == {type_name} or weight_types == {type_name} or in_columns:
        return Outcome.MATCHED, f"{type_name}, element by element in {layers[0].name}"
    if type_name not in operands or (weight_types and type_name not in weight_types):
        types = "/".join(sorted(weight_types or operands))
        return changed(type_name, types, f"computed element by element in {layers[0].name}")
    return Outcome.NOT_FOUND, f"{layers[0].name} computes it element by element, in which of its types is not known"


def _has_columns(constants: list[Tensor], type_name: str, weight: tuple[int, ...], axis: int) -> bool:
    """Whether a weight is listed in columns of its output channels (``axis``), one per input channel, in a type."""
    columns = [tensor for tensor in constants if tensor.dtype == type_name and math.prod(tensor.shape) == weight[axis]]
    return len(columns) * weight[axis] >= math.prod(weight)


def _operand(edge: Edge, storage: QParams, node: ir.Node, fused: bool, layers: tuple[Layer, ...]) -> TensorReadBack:
    outcome, detail = _operand_outcome(edge, TYPE_NAMES[storage.dtype], node, fused, layers)
    value = node.inputs[edge.index]
    if value is None:
        raise ValueError(f"the plan names input {edge}, which is empty")
    return TensorReadBack(origin_of(value).name, outcome, detail, edge, str(value.name))


def _operand_outcome(
    edge: Edge, type_name: str, node: ir.Node, fused: bool, layers: tuple[Layer, ...]
) -> tuple[Outcome, str]:
    matrix_layers = [layer for layer in layers if layer.is_matrix_op and edge.node in layer.nodes]
    if not matrix_layers:
        generated = next((layer.name for layer in layers if edge.node in layer.nodes), "")
        if not generated:
            return Outcome.NOT_FOUND, _NO_LAYER
        return changed(f"an {type_name} matrix kernel", "none", f"computed element by element in {generated}")
    if fused:
        return Outcome.MATCHED, f"{type_name} in the attention block {matrix_layers[0].name}"
    two_inputs = constant_of(node.inputs[1]) is None
    differing = [layer for layer in matrix_layers if not _computes_in(layer, type_name, two_inputs)]
    unknown = [layer for layer in differing if not two_inputs and _hides_constants(layer, type_name)]
    if other := next((layer for layer in differing if layer not in unknown), None):
        return _other_operands(other, type_name, two_inputs)
    if unknown and edge.index == 1:
        return (
            Outcome.NOT_FOUND,
            f"the list does not give the type of the constants of {unknown[0].kind} {unknown[0].name}",
        )
    return Outcome.MATCHED, f"{type_name} in {matrix_layers[0].kind} {matrix_layers[0].name}"


def _computes_in(layer: Layer, type_name: str, two_inputs: bool) -> bool:
    """Whether both operands of a matrix operation have a type; further inputs are added to its result."""
    inputs = sum(tensor.dtype == type_name for tensor in layer.inputs)
    constants = sum(tensor.dtype == type_name for tensor in layer.constants)
    return inputs >= 2 if two_inputs else inputs >= 1 and inputs + constants >= 2


def _hides_constants(layer: Layer, type_name: str) -> bool:
    """Whether a layer lists only its inputs, in the right type: some lists leave constants out."""
    return not layer.constants and {tensor.dtype for tensor in layer.inputs} == {type_name}


def _other_operands(layer: Layer, type_name: str, two_inputs: bool) -> tuple[Outcome, str]:
    """The outcome of a matrix operation whose operands do not both have the planned type."""
    planned = f"{type_name} x {type_name}{'' if two_inputs else ' constant'}"
    constants = [f"{tensor.dtype} constant" for tensor in layer.constants[:1]]
    found = " x ".join((*(tensor.dtype for tensor in layer.inputs), *constants))
    return changed(planned, found, f"computed by {layer.kind} {layer.name}")


def _of_block(block: Block, outcome: Outcome, detail: str) -> TensorReadBack:
    return TensorReadBack(block.place.tensor, outcome, detail, emitted=block.output)


def _attention(block: Block) -> TensorReadBack | None:
    """The row of an attention block; None where it is not one kernel in float16 either, so nothing was lost."""
    if block.as_planned and block.layer is not None:
        return _of_block(block, Outcome.MATCHED, f"one attention kernel, {block.layer.types}")
    if block.fused_in_float16 and not block.listed:
        return _of_block(block, Outcome.NOT_FOUND, NOT_LISTED)
    if block.fused_in_float16 is None:
        detail = f"attention is not one fused kernel: {block.why}; whether it is in float16 is not known"
        return _of_block(block, Outcome.NOT_FOUND, detail)
    if not block.lost:
        return None
    return _of_block(block, *changed("one fused attention kernel", "separate kernels", block.why))
