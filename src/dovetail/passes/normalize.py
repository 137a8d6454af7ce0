"""The normalize stage: bring the graph of any exporter to one canonical form.

The form, where shapes are static: no functions, branches, Constant nodes or foldable chains; a linear layer is MatMul
with a [K,N] constant and Add of a [N] constant; the constant is the second operand, there and in every Add and Mul; Sub
of a constant is Add, Div by powers of two is Mul; LayerNormalization has a scale, a bias and a negative axis; Gelu is
one node; BatchNormalization is folded into its convolution, or is Mul and Add; an Einsum of two tensors is MatMul;
windows that tile an image are split and merged by Reshape and Transpose; every change of shape is a Reshape to explicit
sizes; every weight belongs to one layer.
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model import edit
from dovetail.model.check_shapes import check_shapes
from dovetail.pass_record import Pass, PassRecord
from dovetail.passes.additive_attention_mask import additive_attention_mask
from dovetail.passes.attention_scale import attention_scale
from dovetail.passes.bound_sentinels import bound_sentinels
from dovetail.passes.bypass_gather_of_concat import bypass_gather_of_concat
from dovetail.passes.bypass_split_of_concat import bypass_split_of_concat
from dovetail.passes.decompose_attention import decompose_attention
from dovetail.passes.einsum_to_matmul import einsum_to_matmul
from dovetail.passes.fit_sentinels import fit_sentinels
from dovetail.passes.fold_batch_norm import fold_batch_norm
from dovetail.passes.fold_constants import fold_constants
from dovetail.passes.fold_inverse_sigmoid import fold_inverse_sigmoid
from dovetail.passes.fuse_gelu import fuse_gelu
from dovetail.passes.fuse_layer_norm import fuse_layer_norm
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.inline_branches import CONTROL_FLOW, inline_branches
from dovetail.passes.merge_duplicates import merge_duplicates
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.probabilities_first import probabilities_first
from dovetail.passes.protect_pad_from_fusion import protect_pad_from_fusion
from dovetail.passes.remove_nan_guard import remove_nan_guard
from dovetail.passes.remove_noops import remove_noops
from dovetail.passes.remove_unused import remove_unused
from dovetail.passes.remove_zero_masks import remove_zero_masks
from dovetail.passes.scalar_range import scalar_range
from dovetail.passes.simplify_attention_layout import simplify_attention_layout
from dovetail.passes.softmax_over_last_axis import softmax_over_last_axis
from dovetail.passes.split_fused_qkv import split_fused_qkv
from dovetail.passes.unfold_to_reshape import unfold_to_reshape
from dovetail.passes.unify_arithmetic import unify_arithmetic
from dovetail.passes.unify_casts import unify_casts
from dovetail.passes.unify_linear import unify_linear
from dovetail.passes.unify_reshapes import unify_reshapes
from dovetail.passes.unshare_constants import unshare_constants

# All later passes need shapes and constants; an Identity hides a constant, and a branch contains more of them.
FOLD: tuple[Pass, ...] = (
    remove_noops,
    unify_casts,
    scalar_range,
    fold_constants,
    inline_branches,
    einsum_to_matmul,
)
# The whole stage, in order; a tuple of passes is repeated until none of them changes anything.
NORMALIZE: tuple[Pass | tuple[Pass, ...], ...] = (
    infer_shapes,
    FOLD,
    merge_duplicates,  # one mean, one centered tensor: the fusions match these
    unify_arithmetic,  # constants as the second operand: the fusions match these
    unify_linear,
    fold_batch_norm,
    fuse_layer_norm,
    fuse_gelu,
    fold_inverse_sigmoid,
    decompose_attention,
    probabilities_first,
    remove_nan_guard,
    remove_zero_masks,
    additive_attention_mask,
    bound_sentinels,  # after fold_inverse_sigmoid: a Clip saturates, a Log does not; and what is left of the masks
    attention_scale,  # moves scales off K, so that only reshapes and transposes are left before it
    split_fused_qkv,
    simplify_attention_layout,
    softmax_over_last_axis,
    bypass_gather_of_concat,
    unfold_to_reshape,
    (unify_reshapes, merge_layout, remove_noops),
    bypass_split_of_concat,  # after unify_reshapes: after one Reshape, to explicit sizes
    protect_pad_from_fusion,
    unshare_constants,
    remove_unused,
    infer_shapes,
)
# What only makes ranges smaller, so that integers can represent them.
RANGE_REPAIRS: tuple[Pass, ...] = (fold_inverse_sigmoid, additive_attention_mask, bound_sentinels)
# The names in their records, with that of the pass that needs calibration data.
RANGE_REPAIR_NAMES = frozenset((*(repair.__name__ for repair in RANGE_REPAIRS), fit_sentinels.__name__))


def normalize(model: ir.Model, *, repair_ranges: bool = True) -> tuple[ir.Model, tuple[PassRecord, ...]]:
    """The canonical form of a model, and the records of all passes; the given model is not changed.

    ``repair_ranges``: whether to apply the passes that only make ranges smaller.
    """
    model = model.clone()
    edit.forget_names(model.graph)
    records: list[PassRecord] = []
    for step in NORMALIZE:
        if step in RANGE_REPAIRS and not repair_ranges:
            continue
        if isinstance(step, tuple):
            records += _repeat(step, model)
        else:
            records.append(step(model))
        if step is FOLD:
            check_shapes(model)  # sizes that were computed are constants now
    _refuse_control_flow(model)
    return model, tuple(records)


def _repeat(passes: tuple[Pass, ...], model: ir.Model) -> list[PassRecord]:
    records: list[PassRecord] = []
    while True:
        latest = [apply_pass(model) for apply_pass in passes]
        records += latest
        if not any(record.changed for record in latest):
            return records


def _refuse_control_flow(model: ir.Model) -> None:
    for node in model.graph:
        if edit.is_op(node, *CONTROL_FLOW):
            raise InputError(
                f"node {node.name!r} ({node.op_type}) is control flow that depends on the inputs, "
                "which no quantized target supports; export the model without it"
            )
