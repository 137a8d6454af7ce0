"""Look up every attention block of the graph in the engine, and find out what broke those that are not one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import DType
from dovetail.finding import Finding, Place, Severity
from dovetail.model.attention import Attention, find_attention
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_op
from dovetail.model.place import at_attention
from dovetail.targets.tensorrt.layers import TYPE_NAMES, Layer
from dovetail.targets.tensorrt.rules.compiler import NOT_FUSED, NOT_IN_LAYER_LIST
from dovetail.targets.tensorrt.table import no_kernel
from dovetail.targets.tensorrt.unquantized import UnquantizedModel

# The codes under which an attention block is reported.
CODES = (NOT_FUSED, NOT_IN_LAYER_LIST)
# What a message says about float16, by whether the attention block is one kernel there.
_IN_FLOAT16 = {
    True: "in float16 it is",
    False: "in float16 it is not either",
    None: "whether it is in float16 is not known",
}
NOT_LISTED = "no layer in the list computes this attention block"


@dataclass(frozen=True, slots=True)
class Block:
    """One attention block: what was planned for it, and what it is in the engines.

    ``planned``: the type of its four operands, None where they differ. ``layer``: the fused layer, if any.
    ``fused_in_float16``: whether it is one kernel in the same graph without Q/DQ pairs, None where that was not built.
    ``why``: what broke it. ``masks``: the number of its masks that are not constants, of any type. ``listed``: whether
    the layer list has layers that compute its MatMuls; if it has none, nothing is known about the block. ``output``:
    the tensor that it writes, in the emitted graph.
    """

    place: Place
    nodes: tuple[str, ...]
    planned: DType | None
    layer: Layer | None
    fused_in_float16: bool | None
    why: str = ""
    masks: int = 0
    listed: bool = True
    output: str = ""

    @property
    def as_planned(self) -> bool:
        """Whether it is one kernel whose operands all have the planned type."""
        if self.layer is None or self.planned is None:
            return False
        matches = [tensor.dtype == TYPE_NAMES.get(self.planned) for tensor in self.layer.inputs]
        return any(matches) and matches.count(False) <= self.masks

    @property
    def lost(self) -> bool:
        """Whether quantization broke the kernel that it is in float16."""
        float32 = self.planned is DType.F32  # which has no fused kernel to lose
        return bool(self.fused_in_float16) and self.listed and not self.as_planned and not float32


def find_blocks(
    plain: UnquantizedModel, layers: tuple[Layer, ...], in_float16: tuple[Layer, ...] | None
) -> tuple[Block, ...]:
    """Look up every attention block of the graph in the engine, and in the float16 engine if there is one."""
    return tuple(_block(attention, plain, layers, in_float16) for attention in find_attention(plain.model.graph))


def _block(
    attention: Attention, plain: UnquantizedModel, layers: tuple[Layer, ...], in_float16: tuple[Layer, ...] | None
) -> Block:
    nodes = tuple(node.name or "" for node in (attention.scores, attention.softmax, attention.mix))
    types = operand_types(attention, plain)
    same_type = len(set(types.values())) == 1
    planned = (types["query"] or _float_type(plain)) if same_type else None
    layer = _fused(nodes, layers)
    fused = None if in_float16 is None else _fused(nodes, in_float16) is not None
    masks = sum(constant_of(mask.value) is None for mask in attention.masks)
    output = str(attention.mix.outputs[0].name)
    block = Block(at_attention(attention), nodes, planned, layer, fused, masks=masks, output=output)
    if block.as_planned:
        return block
    listed = layer is not None or all(any(name in layer.nodes for layer in layers) for name in (nodes[0], nodes[-1]))
    return replace(block, why=why_broken(attention, plain, layer), listed=listed)


def _float_type(plain: UnquantizedModel) -> DType:
    """The type of everything that is not quantized: float32 where nothing in the graph is float16."""
    types = {value.dtype for node in plain.model.graph for value in node.outputs}
    return DType.F16 if ir.DataType.FLOAT16 in types else DType.F32


def _fused(nodes: tuple[str, ...], layers: tuple[Layer, ...]) -> Layer | None:
    return next((layer for layer in layers if layer.is_attention and not layer.nodes.isdisjoint(nodes)), None)


def operand_types(attention: Attention, plain: UnquantizedModel) -> dict[str, DType | None]:
    """The 8-bit type of each of the four operands, None for an operand without a Q/DQ pair."""
    operands = attention.operands.items()
    return {name: plain.edges.get(Edge(node.name or "", index)) for name, (node, index) in operands}


def why_broken(attention: Attention, plain: UnquantizedModel, layer: Layer | None) -> str:
    """The edge or the size that keeps an attention block from being one 8-bit kernel."""
    types = operand_types(attention, plain)
    missing = [name for name, dtype in types.items() if dtype is None]
    dtypes = sorted({str(dtype) for dtype in types.values() if dtype is not None})
    path = [node for node in attention.path if node.inputs[0] is not None and node is not attention.guard]
    quantized = [node for node in path[: path.index(attention.softmax) + 1] if _is_quantized(node, plain)]
    if quantized:
        return f"there is a Q/DQ pair on the scores, before {quantized[0].op_type} {quantized[0].name!r}"
    if missing and len(missing) < len(types):
        return f"there is no Q/DQ pair on its {' and its '.join(missing)}"
    if len(dtypes) > 1:
        return f"its operands have different types, {' and '.join(dtypes)}"
    if attention.guard is not None:
        return f"Where {attention.guard.name!r}, which replaces NaN, is between the Softmax and the second MatMul"
    dtype = types["query"]
    if dtype is not None and dtype not in TYPE_NAMES:
        return f"TensorRT has no {dtype} and reads these tensors as another type"
    if dtype is None and _float_type(plain) is DType.F32:
        return "it runs in float32 like the whole graph, and there is no fused float32 kernel"
    if dtype is None and attention.query.dtype is ir.DataType.FLOAT:
        return "it runs in float32, and there is no fused float32 kernel"
    if dtype is not None and (why := no_kernel(attention, dtype)):
        return why
    if dtype is DType.S8 and not _output_is_quantized(attention.mix.outputs[0], plain):
        return "there is no Q/DQ pair on its output, which INT8 attention requires"
    if layer is not None:
        return f"it runs as {layer.types}"
    return "the builder gives no reason"


def _output_is_quantized(value: ir.Value, plain: UnquantizedModel) -> bool:
    """Whether all consumers of a value, also after data-movement operators and Casts, read it quantized."""
    return all(
        Edge(user.name or "", index) in plain.edges
        or (is_op(user, *DATA_MOVEMENT_OPS, "Cast") and _output_is_quantized(user.outputs[0], plain))
        for user, index in value.uses()
    )


def _is_quantized(node: ir.Node, plain: UnquantizedModel) -> bool:
    return any(Edge(node.name or "", index) in plain.edges for index in range(len(node.inputs)))


def findings(blocks: tuple[Block, ...]) -> tuple[Finding, ...]:
    """One finding for every block that is not the planned kernel."""
    result = []
    for block in blocks:
        if block.as_planned:
            continue
        if not block.listed:
            result.append(Finding(NOT_IN_LAYER_LIST, block.place, NOT_LISTED, Severity.NOTE))
            continue
        planned = TYPE_NAMES.get(block.planned, str(block.planned)) if block.planned is not None else "8-bit"
        in_float16 = _IN_FLOAT16[block.fused_in_float16]
        message = f"attention is not one fused {planned} kernel ({in_float16}): {block.why}"
        severity = Severity.ERROR if block.lost else Severity.NOTE
        if block.fused_in_float16 is None:
            severity = Severity.WARNING
        result.append(Finding(NOT_FUSED, block.place, message, severity))
    return tuple(result)
