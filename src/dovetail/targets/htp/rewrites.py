"""The graph rewrites for HTP, in the order in which they run."""

from __future__ import annotations

from dovetail.passes.flatten_to_rank_2 import flatten_to_rank_2
from dovetail.passes.fold_scale import fold_scale
from dovetail.passes.fuse_hard_swish import fuse_hard_swish
from dovetail.passes.fuse_l2_norm import fuse_l2_norm
from dovetail.passes.gather_nd_to_gather import gather_nd_to_gather
from dovetail.passes.global_max_pool_to_reduce_max import global_max_pool_to_reduce_max
from dovetail.passes.group_norm_to_instance_norm import group_norm_to_instance_norm
from dovetail.passes.layer_norm_last_axis import layer_norm_last_axis
from dovetail.passes.linear_to_gemm import linear_to_gemm
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.merge_transpose_axes import merge_transpose_axes
from dovetail.passes.mish_to_tanh import mish_to_tanh
from dovetail.passes.reciprocal_to_div import reciprocal_to_div
from dovetail.passes.reduce_elementwise_rank import reduce_elementwise_rank
from dovetail.passes.reduce_sum_to_matmul import reduce_sum_to_matmul
from dovetail.passes.remove_unused import remove_unused
from dovetail.passes.split_heads import split_heads
from dovetail.passes.transposed_matmul_to_einsum import transposed_matmul_to_einsum
from dovetail.passes.unbroadcast_matmul import unbroadcast_matmul
from dovetail.passes.unfold_to_conv import unfold_to_conv
from dovetail.passes.ungroup_conv_transpose import ungroup_conv_transpose

REWRITES = (
    mish_to_tanh,
    reciprocal_to_div,
    global_max_pool_to_reduce_max,
    fuse_hard_swish,
    fuse_l2_norm,
    unfold_to_conv,
    ungroup_conv_transpose,
    reduce_elementwise_rank,
    gather_nd_to_gather,
    reduce_sum_to_matmul,
    linear_to_gemm,
    fold_scale,
    split_heads,
    merge_transpose_axes,
    unbroadcast_matmul,
    layer_norm_last_axis,
    group_norm_to_instance_norm,
    flatten_to_rank_2,
    merge_layout,
    transposed_matmul_to_einsum,
    remove_unused,
)
