"""Q4 and Q6 on TensorRT: what keeps an attention from being one kernel."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.attention import Attention, find_attention
from dovetail.model.place import at_attention
from dovetail.op_support import OpTable
from dovetail.plan.validate import seen_on
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.storage import Plan, Storage


def _operands(found: Attention, plan: Plan) -> dict[str, Storage]:
    """How the four operands of the two products are stored."""
    return {part: _seen(node, index, plan) for part, (node, index) in found.operands.items()}


def _seen(node: ir.Node, index: int, plan: Plan) -> Storage:
    value = node.inputs[index]
    return seen_on(plan, Edge(node.name or "", index), "" if value is None else str(value.name))


@rule("Q421")
def attention_operand_without_pair(subject: CheckInput) -> Iterator[Finding]:
    """Some operands of an attention are in 8 bit and others are not.

    ## What it finds
    Attention in which query, key, value or, most often, the output of the softmax has no Q/DQ pair while the others
    have one.

    ## Why it matters
    The builder makes one kernel of the two products and the softmax only if all four operands have the same 8-bit type,
    or none has. With one missing there are three kernels and float16 in between: slower than without 8 bit. The count
    of products with pairs looks healthy all the same.

    ## How to fix it
    A pair on all four. The softmax lies in [0, 1]: scale 1/448 in FP8, 1/127 in INT8. `dovetail repair` puts it there.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: without any one of the four there is no `_gemm_mha_v2`, in FP8 and
      in INT8; with all four there is.
    """
    for found in find_attention(subject.model.graph) if subject.plan is not None else ():
        stored = _operands(found, subject.plan) if subject.plan is not None else {}
        bare = [part for part, storage in stored.items() if not isinstance(storage, QParams)]
        if 0 < len(bare) < len(stored):
            message = f"the attention has no pair on its {' and its '.join(bare)}, so it is not one kernel"
            yield Finding("Q421", at_attention(found), message, Severity.ERROR, fix=f"a pair on its {bare[0]} too")


@rule("Q422")
def pair_on_scores(subject: CheckInput) -> Iterator[Finding]:
    """A pair stands on the scores of an attention, in front of its mask or softmax.

    ## What it finds
    Q/DQ pairs between the first product of an attention and its softmax: on the scores, on a mask, in front of the Add
    of the mask.

    ## Why it matters
    Inside the fused kernel the scores are never stored. A pair asks for them, and the attention falls apart into three
    kernels. Quantizers that put a pair in front of every Add do this to exports with a mask.

    ## How to fix it
    Take the pair away; `dovetail repair` does.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: a pair on the scores, or in front of the Add of a mask, and there
      is no `_gemm_mha_v2`; without it there is.
    """
    plan = subject.plan
    for found in find_attention(subject.model.graph) if plan is not None else ():
        inside = found.path[: found.path.index(found.softmax) + 1]
        paired = [node for node in inside if plan is not None and _reads_stored(node, plan)]
        if paired:
            node = paired[0]
            message = (
                f"there is a pair on the scores, in front of {node.op_type} {node.name!r}: they are not one kernel"
            )
            yield Finding("Q422", at_attention(found), message, Severity.ERROR, fix="take the pair away")


def _reads_stored(node: ir.Node, plan: Plan) -> bool:
    return any(isinstance(_seen(node, index, plan), QParams) for index in range(len(node.inputs)))


@rule("Q423")
def guard_against_nan_in_attention(subject: CheckInput) -> Iterator[Finding]:
    """A Where that replaces NaN stands between the softmax and the second product of an attention in 8 bit.

    ## What it finds
    `Softmax -> IsNaN -> Where` in an attention whose operands have Q/DQ pairs, as torch exports
    scaled_dot_product_attention with a mask.

    ## Why it matters
    The builder does not see through it: the attention is three kernels and more. In float16 it is one all the same, so
    that only the quantized model becomes slow.

    ## How to fix it
    Take the Where away where no row can be masked as a whole, which is the only way to a NaN; `dovetail fit` and
    `dovetail repair` do.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: with the Where there is no `_gemm_mha_v2` in FP8 and INT8, without
      it there is. nvidia-modelopt 0.47.0 leaves it in: 0 of 12 blocks of a ViT exported by dynamo with SDPA.
    """
    plan = subject.plan
    for found in find_attention(subject.model.graph) if plan is not None else ():
        stored = _operands(found, plan).values() if plan is not None else ()
        if found.guard is not None and any(isinstance(storage, QParams) for storage in stored):
            message = f"{found.guard.op_type} {found.guard.name!r} stands between softmax and product: not one kernel"
            yield Finding(
                "Q423", at_attention(found), message, Severity.ERROR, fix="take it away: `dovetail repair` does"
            )


@rule("Q621")
def attention_without_kernel(subject: CheckInput) -> Iterator[Finding]:
    """An attention in 8 bit has a size for which there is no kernel.

    ## What it finds
    Attention with all operands in one 8-bit type where the builder has no fused kernel: INT8 with a head size other
    than 16, 32 and 64, with more than 512 keys, or not in front of a product; FP8 with fewer than 32 keys.

    ## Why it matters
    In float16 it is one kernel at all these sizes. In 8 bit it is three, and slower.

    ## How to fix it
    Leave the pairs of this attention out: `dovetail fit` does. Or use FP8 for INT8, or the other way round.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, built for sm89: head sizes 8 to 256, 1 to 2048 keys; the number of queries does
      not matter. BuildInputs for sm75, sm80, sm86, sm120 and sm121 at three sizes each, which agree.
    """
    plan = subject.plan
    for found in find_attention(subject.model.graph) if plan is not None else ():
        stored = list(_operands(found, plan).values()) if plan is not None else []
        dtypes = {storage.dtype for storage in stored if isinstance(storage, QParams)}
        if len(dtypes) != 1 or not all(isinstance(storage, QParams) for storage in stored):
            continue
        why = _no_kernel(subject.table, found.scores, stored[0])
        if why:
            yield Finding("Q621", at_attention(found), why, Severity.ERROR, fix="leave this attention in float16")


def _no_kernel(table: OpTable, node: ir.Node, storage: Storage) -> str:
    """Why the target's table does not take a product of two activations in this type."""
    for signature in table.ops["MatMul"].signatures:
        both = [slot.encoding.dtype for slot in signature.inputs if not slot.constant]
        if both == [storage.dtype, storage.dtype] and signature.when is not None:
            return signature.when(node)
    return ""
