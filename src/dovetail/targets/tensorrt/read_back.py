"""Every planned 8-bit operand and every attention, looked up in the layer list of the engine."""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack
from dovetail.edge import Edge
from dovetail.encoding import Array, DType, QParams
from dovetail.model.edit import constant_of, is_op
from dovetail.model.origin import origin_of
from dovetail.storage import Plan
from dovetail.targets.tensorrt.coverage import NOT_LISTED, Block, find_blocks
from dovetail.targets.tensorrt.layers import WORDS, Layer, UnreadableError, parse_layers
from dovetail.targets.tensorrt.unquantized import UnquantizedModel, unquantized

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
EVIDENCE = "the layer list that the builder printed for the engine, and that of the same graph in float16"

NO_FLOAT16_LIST = "there is no layer list of the same graph in float16 to compare with"


def read_layers(emitted: Path, layers: Path, float16_layers: Path, plan: Plan) -> ReadBack:
    """What became of every planned storage; not read at all where a line of the list is of an unknown form."""
    try:
        built, in_float16 = (parse_layers(path.read_text()) for path in (layers, float16_layers))
    except UnreadableError as error:
        return ReadBack((), EVIDENCE, unparsed=str(error))
    plain = unquantized(ir.load(emitted))
    return as_planned(plain, find_blocks(plain, built, in_float16), built, plan, EVIDENCE)


def as_planned(
    plain: UnquantizedModel, blocks: tuple[Block, ...], built: tuple[Layer, ...], plan: Plan, evidence: str
) -> ReadBack:
    """The same from layers that were read already."""
    nodes = {node.name or "": node for node in plain.model.graph}
    fused = {name for block in blocks if block.as_planned for name in block.nodes}
    tensors = [
        _operand(edge, storage, nodes[edge.node], edge.node in fused, built)
        for edge, choice in plan.edges.items()
        if isinstance(storage := choice.storage, QParams)
    ]
    in_8_bit = {edge.node for edge, choice in plan.edges.items() if isinstance(choice.storage, QParams)}
    in_float = [node for node in nodes.values() if is_op(node, *_PRODUCTS) and node.name not in fused | in_8_bit]
    tensors += [_product(node, built) for node in in_float]
    return ReadBack((*tensors, *(one for block in blocks if (one := _attention(block)) is not None)), evidence)


def _product(node: ir.Node, layers: tuple[Layer, ...]) -> TensorReadBack:
    """A product that is not in 8 bit: computed in the float type that the file says."""
    output = node.outputs[0]
    word = WORDS[DType.F16 if output.dtype is ir.DataType.FLOAT16 else DType.F32]
    outcome, detail = _product_outcome(node, layers, word)
    return TensorReadBack(origin_of(output).name, outcome, detail, emitted=str(output.name))


def _product_outcome(node: ir.Node, layers: tuple[Layer, ...], word: str) -> tuple[Outcome, str]:
    found = [layer for layer in layers if (node.name or "") in layer.nodes]
    products = [layer for layer in found if layer.is_product]
    two_inputs = constant_of(node.inputs[1]) is None
    for layer in products:
        if not _computes_in(layer, word, two_inputs) and not _hides_constants(layer, word):
            return Outcome.CHANGED, f"{layer.kind} {layer.name} computes {_operands(layer)}"
    if products:
        return Outcome.MATCHED, f"{word} in {products[0].kind} {products[0].name}"
    if not found:
        return Outcome.NOT_FOUND, "no layer does the work of this operator"
    return _element_by_element(found[0], word, constant_of(node.inputs[1]))


def _element_by_element(layer: Layer, word: str, weight: Array | None) -> tuple[Outcome, str]:
    """A small product in a generated layer, told by its weight: what else is in there may be of other types."""
    every = {one.dtype for one in (*layer.inputs, *layer.constants)}
    sized = {one.dtype for one in layer.constants if weight is not None and math.prod(one.shape) == weight.size}
    if every == {word} or sized == {word}:
        return Outcome.MATCHED, f"{word}, element by element in {layer.name}"
    if word not in every or (sized and word not in sized):
        return Outcome.CHANGED, f"{layer.name} computes it element by element in {'/'.join(sorted(sized or every))}"
    return Outcome.NOT_FOUND, f"{layer.name} computes it element by element, in which of its types is not said"


def _operand(edge: Edge, storage: QParams, node: ir.Node, fused: bool, layers: tuple[Layer, ...]) -> TensorReadBack:
    outcome, detail = _operand_outcome(edge, WORDS[storage.dtype], node, fused, layers)
    value = node.inputs[edge.index]
    if value is None:
        raise ValueError(f"the plan speaks of input {edge}, which is empty")
    return TensorReadBack(origin_of(value).name, outcome, detail, edge, str(value.name))


def _operand_outcome(
    edge: Edge, word: str, node: ir.Node, fused: bool, layers: tuple[Layer, ...]
) -> tuple[Outcome, str]:
    found = [layer for layer in layers if layer.is_product and edge.node in layer.nodes]
    if not found:
        inside = next((layer.name for layer in layers if edge.node in layer.nodes), "")
        said = f"computed element by element in {inside}" if inside else "no layer does the work of this operator"
        return Outcome.CHANGED if inside else Outcome.NOT_FOUND, said
    if fused:
        return Outcome.MATCHED, f"{word} in the attention {found[0].name}"
    two_inputs = constant_of(node.inputs[1]) is None
    bad = [layer for layer in found if not _computes_in(layer, word, two_inputs)]
    silent = [layer for layer in bad if not two_inputs and _hides_constants(layer, word)]
    if changed := next((layer for layer in bad if layer not in silent), None):
        return Outcome.CHANGED, f"{changed.kind} {changed.name} computes {_operands(changed)}"
    if silent and edge.index == 1:
        said = f"the list does not say in which type {silent[0].kind} {silent[0].name} has its constants"
        return Outcome.NOT_FOUND, said
    return Outcome.MATCHED, f"{word} in {found[0].kind} {found[0].name}"


def _computes_in(layer: Layer, word: str, two_inputs: bool) -> bool:
    """Whether both operands of a product are of a type: further inputs are what is added to it."""
    inputs = sum(tensor.dtype == word for tensor in layer.inputs)
    constants = sum(tensor.dtype == word for tensor in layer.constants)
    return inputs >= 2 if two_inputs else inputs >= 1 and inputs + constants >= 2


def _hides_constants(layer: Layer, word: str) -> bool:
    """Whether all that is said of a product is its data, in the right type: some lists leave constants out."""
    return not layer.constants and {tensor.dtype for tensor in layer.inputs} == {word}


def _operands(layer: Layer) -> str:
    return " x ".join(tensor.dtype for tensor in (*layer.inputs, *layer.constants[:1]))


def _of_block(block: Block, outcome: Outcome, detail: str) -> TensorReadBack:
    return TensorReadBack(block.place.tensor, outcome, detail, emitted=block.output)


def _attention(block: Block) -> TensorReadBack | None:
    """A block as a row of its own; none where neither type has it as one kernel, for then nothing was lost."""
    if block.as_planned and block.layer is not None:
        return _of_block(block, Outcome.MATCHED, f"one attention kernel, {block.layer.types}")
    if block.fused_in_float16 and not block.listed:
        return _of_block(block, Outcome.NOT_FOUND, NOT_LISTED)
    if block.fused_in_float16 is None:
        why = f"attention is not one kernel: {block.why}; whether it is in float16 is not known"
        return _of_block(block, Outcome.NOT_FOUND, why)
    if not block.lost:
        return None
    return _of_block(block, Outcome.CHANGED, f"attention is not one kernel: {block.why}")
