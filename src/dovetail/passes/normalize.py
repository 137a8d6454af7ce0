"""The normalize stage: any exporter's graph in, one canonical form out.

The form, where shapes are static: no functions, branches, Constant nodes or foldable chains; a linear layer is MatMul
by a [K,N] constant and Add of a [N] constant, with the constant second there and in every Add and Mul; Sub of a
constant is Add, Div by powers of two is Mul; LayerNormalization has a scale, a bias and a negative axis; Gelu is one
node; BatchNormalization is in its convolution, or Mul and Add; a product of two tensors is MatMul, never Einsum;
windows that tile an image are cut and put together by layout; every change of shape is a Reshape to plain sizes;
weights belong to one layer.
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model import edit
from dovetail.pass_record import Pass, PassRecord
from dovetail.passes.attention_layout import attention_layout
from dovetail.passes.attention_mask import attention_mask
from dovetail.passes.attention_order import attention_order
from dovetail.passes.attention_parts import attention_parts
from dovetail.passes.attention_scale import attention_scale
from dovetail.passes.attention_softmax import attention_softmax
from dovetail.passes.bound_sentinels import bound_sentinels
from dovetail.passes.copy_shared_constants import copy_shared_constants
from dovetail.passes.decompose_attention import decompose_attention
from dovetail.passes.einsum_as_matmul import einsum_as_matmul
from dovetail.passes.fold_batch_norm import fold_batch_norm
from dovetail.passes.fold_constants import fold_constants
from dovetail.passes.fuse_gelu import fuse_gelu
from dovetail.passes.fuse_layer_norm import fuse_layer_norm
from dovetail.passes.gather_one import gather_one
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.inline_branches import CONTROL_FLOW, inline_branches
from dovetail.passes.keep_padding import keep_padding
from dovetail.passes.logit_of_sigmoid import logit_of_sigmoid
from dovetail.passes.merge_duplicates import merge_duplicates
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.remove_nan_guard import remove_nan_guard
from dovetail.passes.remove_noops import remove_noops
from dovetail.passes.remove_unused import remove_unused
from dovetail.passes.remove_zero_masks import remove_zero_masks
from dovetail.passes.scalar_range import scalar_range
from dovetail.passes.unify_arithmetic import unify_arithmetic
from dovetail.passes.unify_casts import unify_casts
from dovetail.passes.unify_linear import unify_linear
from dovetail.passes.unify_reshapes import unify_reshapes
from dovetail.passes.windows_as_layout import windows_as_layout

# The whole stage, in order; a group in brackets is repeated until none of its passes changes anything.
NORMALIZE: tuple[Pass | tuple[Pass, ...], ...] = (
    infer_shapes,
    # All that follows needs shapes and constants; an Identity hides a constant, and a branch holds more of them.
    (remove_noops, unify_casts, scalar_range, fold_constants, inline_branches, einsum_as_matmul),
    merge_duplicates,  # one mean, one centred tensor: what the fusions look for
    unify_arithmetic,  # the constant second: what the fusions look for
    unify_linear,
    fold_batch_norm,
    fuse_layer_norm,
    fuse_gelu,
    logit_of_sigmoid,
    bound_sentinels,  # behind the above: a Clip saturates where a Log would not
    decompose_attention,
    attention_order,
    remove_nan_guard,
    remove_zero_masks,
    attention_mask,
    attention_scale,  # off K, so that only layout nodes are left in front of it
    attention_parts,
    attention_layout,
    attention_softmax,
    gather_one,
    windows_as_layout,
    (unify_reshapes, merge_layout, remove_noops),
    keep_padding,
    copy_shared_constants,
    remove_unused,
    infer_shapes,
)


def normalize(model: ir.Model) -> tuple[ir.Model, tuple[PassRecord, ...]]:
    """The canonical form of a model, and what every pass did; the model given is not changed."""
    model = model.clone()
    edit.forget_names(model.graph)
    records: list[PassRecord] = []
    for step in NORMALIZE:
        if isinstance(step, tuple):
            records += _repeat(step, model)
        else:
            records.append(step(model))
    _refuse_control_flow(model)
    return model, tuple(records)


def _repeat(group: tuple[Pass, ...], model: ir.Model) -> list[PassRecord]:
    records: list[PassRecord] = []
    while True:
        turn = [each(model) for each in group]
        records += turn
        if not any(record.changed for record in turn):
            return records


def _refuse_control_flow(model: ir.Model) -> None:
    for node in model.graph:
        if edit.is_op(node, *CONTROL_FLOW):
            raise InputError(
                f"node {node.name!r} ({node.op_type}) is control flow that depends on the inputs, "
                "which no quantized target runs"
            )
