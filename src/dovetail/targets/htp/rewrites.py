"""The graph rewrites for HTP, in the order in which they run."""

from __future__ import annotations

from dovetail.passes.flatten_rows import flatten_rows
from dovetail.passes.fold_scale import fold_scale
from dovetail.passes.layer_norm_last_axis import layer_norm_last_axis
from dovetail.passes.linear_as_gemm import linear_as_gemm
from dovetail.passes.lower_rank import lower_rank
from dovetail.passes.matmul_of_transposed import matmul_of_transposed
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.merge_transpose_axes import merge_transpose_axes
from dovetail.passes.nd_as_gather import nd_as_gather
from dovetail.passes.remove_unused import remove_unused
from dovetail.passes.split_heads import split_heads
from dovetail.passes.sum_as_matmul import sum_as_matmul
from dovetail.passes.unbroadcast_matmul import unbroadcast_matmul
from dovetail.passes.windows_as_conv import windows_as_conv

REWRITES = (
    windows_as_conv,
    lower_rank,
    nd_as_gather,
    sum_as_matmul,
    linear_as_gemm,
    fold_scale,
    split_heads,
    merge_transpose_axes,
    unbroadcast_matmul,
    layer_norm_last_axis,
    flatten_rows,
    merge_layout,
    matmul_of_transposed,
    remove_unused,
)
