"""Attention block by block: found in the graph, looked up in the engine, and what broke it if it is not one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import DType
from dovetail.finding import Finding, Place, Severity
from dovetail.model.attention import Attention, find_attention
from dovetail.model.edit import constant_of, is_op
from dovetail.model.movers import MOVERS
from dovetail.model.place import at_attention
from dovetail.targets.tensorrt.layers import WORDS, Layer
from dovetail.targets.tensorrt.rules.compiler import NOT_IN_LAYER_LIST, NOT_ONE_KERNEL
from dovetail.targets.tensorrt.table import no_kernel
from dovetail.targets.tensorrt.unquantized import UnquantizedModel

# The codes under which an attention is reported.
CODES = (NOT_ONE_KERNEL, NOT_IN_LAYER_LIST)
# What is said of float16 beside a block that is not as planned.
_BESIDE = {
    True: "in float16 it is",
    False: "in float16 it is not either",
    None: "whether it is in float16 is not known",
}
NOT_LISTED = "no layer of the list does the work of this attention"


@dataclass(frozen=True, slots=True)
class Block:
    """One attention: what was planned for it, and what the engines make of it.

    ``planned``: the type of its four operands, None where they are not alike. ``layer``: the fused layer, if any.
    ``fused_in_float16``: whether the same graph without 8 bit has it as one kernel, None where that was not built.
    ``why``: what broke it. ``masks``: how many masks it reads that are no constants, in whatever type. ``listed``:
    whether the list has layers that do the work of its products; where it has none, nothing is known. ``output``: the
    tensor that it writes, in the emitted graph.
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
        """Whether it is one kernel, all that it multiplies in the type planned."""
        if self.layer is None or self.planned is None:
            return False
        types = [tensor.dtype == WORDS.get(self.planned) for tensor in self.layer.inputs]
        return any(types) and types.count(False) <= self.masks

    @property
    def lost(self) -> bool:
        """Whether 8 bit cost it the kernel that it has in float16."""
        asked = self.planned is DType.F32  # for which there is no kernel to lose
        return bool(self.fused_in_float16) and self.listed and not self.as_planned and not asked


def find_blocks(
    plain: UnquantizedModel, layers: tuple[Layer, ...], in_float16: tuple[Layer, ...] | None
) -> tuple[Block, ...]:
    """Every attention of the graph, looked up in the engine and in that of float16, if there is one."""
    return tuple(_block(each, plain, layers, in_float16) for each in find_attention(plain.model.graph))


def _block(
    found: Attention, plain: UnquantizedModel, layers: tuple[Layer, ...], in_float16: tuple[Layer, ...] | None
) -> Block:
    nodes = tuple(node.name or "" for node in (found.scores, found.softmax, found.mix))
    types = operand_types(found, plain)
    alike = set(types.values())
    planned = (types["query"] or _float_type(plain)) if len(alike) == 1 else None
    layer = _fused(nodes, layers)
    fused = None if in_float16 is None else _fused(nodes, in_float16) is not None
    masks = sum(constant_of(mask.value) is None for mask in found.masks)
    block = Block(at_attention(found), nodes, planned, layer, fused, masks=masks, output=str(found.mix.outputs[0].name))
    if block.as_planned:
        return block
    listed = layer is not None or all(any(name in one.nodes for one in layers) for name in (nodes[0], nodes[-1]))
    return replace(block, why=why_broken(found, plain, layer), listed=listed)


def _float_type(plain: UnquantizedModel) -> DType:
    """What is not stored in 8 bit computes in: float32 where nothing in the graph is float16."""
    types = {value.dtype for node in plain.model.graph for value in node.outputs}
    return DType.F16 if ir.DataType.FLOAT16 in types else DType.F32


def _fused(nodes: tuple[str, ...], layers: tuple[Layer, ...]) -> Layer | None:
    return next((one for one in layers if one.is_attention and not one.nodes.isdisjoint(nodes)), None)


def operand_types(found: Attention, plain: UnquantizedModel) -> dict[str, DType | None]:
    """The 8-bit type of each of the four operands, None where an operand has no pair."""
    return {part: plain.edges.get(Edge(node.name or "", index)) for part, (node, index) in found.operands.items()}


def why_broken(found: Attention, plain: UnquantizedModel, layer: Layer | None) -> str:
    """The edge, or the size, that keeps an attention from being one kernel of 8 bit."""
    types = operand_types(found, plain)
    missing = [part for part, dtype in types.items() if dtype is None]
    kinds = sorted({str(dtype) for dtype in types.values() if dtype is not None})
    between = [node for node in found.path if node.inputs[0] is not None and node is not found.guard]
    paired = [node for node in between[: between.index(found.softmax) + 1] if _is_stored(node, plain)]
    if paired:
        return f"there is a pair on the scores, in front of {paired[0].op_type} {paired[0].name!r}"
    if missing and len(missing) < len(types):
        return f"there is no pair on its {' and its '.join(missing)}"
    if len(kinds) > 1:
        return f"its operands are of types {' and '.join(kinds)}"
    if found.guard is not None:
        return f"the Where {found.guard.name!r} that replaces NaN stands between softmax and product"
    dtype = types["query"]
    if dtype is not None and dtype not in WORDS:
        return f"an engine has no {dtype}: what is stored so is read as another type"
    if dtype is None and _float_type(plain) is DType.F32:
        return "it computes in float32 as asked, for which there is no fused kernel"
    if dtype is None and found.query.dtype is ir.DataType.FLOAT:
        return "it computes in float32, for which there is no fused kernel"
    if dtype is not None and (why := no_kernel(found, dtype)):
        return why
    if dtype is DType.S8 and not _stored_behind(found.mix.outputs[0], plain):
        return "there is no pair on its output, which INT8 needs"
    if layer is not None:
        return f"it runs as {layer.types}"
    return "the builder does not say why"


def _stored_behind(value: ir.Value, plain: UnquantizedModel) -> bool:
    """Whether a value is stored, moved or not, wherever it is read."""
    return all(
        Edge(user.name or "", index) in plain.edges
        or (is_op(user, *MOVERS, "Cast") and _stored_behind(user.outputs[0], plain))
        for user, index in value.uses()
    )


def _is_stored(node: ir.Node, plain: UnquantizedModel) -> bool:
    return any(Edge(node.name or "", index) in plain.edges for index in range(len(node.inputs)))


def findings(blocks: tuple[Block, ...]) -> tuple[Finding, ...]:
    """One finding for every block that is not the kernel that was planned."""
    found = []
    for block in blocks:
        if block.as_planned:
            continue
        if not block.listed:
            found.append(Finding(NOT_IN_LAYER_LIST, block.place, NOT_LISTED, Severity.NOTE))
            continue
        planned = WORDS.get(block.planned, str(block.planned)) if block.planned is not None else "8 bit"
        beside = _BESIDE[block.fused_in_float16]
        message = f"attention is not one kernel in {planned} ({beside}): {block.why}"
        severity = Severity.ERROR if block.lost else Severity.NOTE
        if block.fused_in_float16 is None:
            severity = Severity.WARNING
        found.append(Finding(NOT_ONE_KERNEL, block.place, message, severity))
    return tuple(found)
