"""Write linear layers with block-quantized weights as MatMul and Add.

ONNX Runtime has kernels for such weights only for MatMul. The other rewrites are made for Gemm: this is the last one.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.unify_linear import split_gemm


def gemm_to_matmul(model: ir.Model, block_sizes: Mapping[str, int]) -> PassRecord:
    """Rewrite the Gemm with these names whose constant weight can be divided into blocks of this size along its input
    channels."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Gemm") or constant_of(node.inputs[1]) is None:
            continue
        if (block_size := block_sizes.get(node.name or "")) is None:
            continue
        where = origin_of(node.outputs[0]).name
        shape = shape_of(node.inputs[1]) or (0, 0)
        channels = shape[1 if attribute(node, "transB", 0) else 0]
        if not channels or channels % block_size:
            text = f"its {channels} input channels are not a multiple of the block size {block_size}"
            declined.append(Site(where, text))
        else:
            split_gemm(model.graph, node)
            changed.append(Site(where, "Gemm rewritten as MatMul and Add, for a block-quantized weight"))
    return PassRecord("gemm_to_matmul", tuple(changed), tuple(declined))
