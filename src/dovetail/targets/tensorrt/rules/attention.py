"""Q4, Q5 and Q6 on TensorRT: what prevents an attention block from being one fused kernel."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.attention import Attention, find_attention
from dovetail.model.edit import is_op
from dovetail.model.place import at_attention, at_node
from dovetail.numerics.grid import FLOAT8_HIGHEST
from dovetail.op_support import OpTable
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.storage import Plan, Storage
from dovetail.targets.tensorrt.rules.storage import input_storage, operand_source
from dovetail.targets.tensorrt.table import fuses_in_float16

# The largest value of a type, and the largest number that is rounded to it and not saturated.
_ROUNDED_TO_HIGHEST = {DType.S8: (127.0, 127.5), DType.F8E4M3: (FLOAT8_HIGHEST, 464.0)}

# From this scale on an int8 Softmax output has half of its steps or fewer, but for the rounding of the scale.
_FEW_STEPS = 64.0


def _operands(attention: Attention, plan: Plan) -> dict[str, Storage]:
    """How the four operands of the two MatMuls are stored."""
    return {name: operand_source(node, index, plan)[1] for name, (node, index) in attention.operands.items()}


@rule("Q421")
def attention_operand_without_qdq(subject: CheckInput) -> Iterator[Finding]:
    """Some operands of an attention block have Q/DQ pairs and others have none.

    ## What it finds
    Attention blocks in which the query, the key, the value or, most often, the output of the Softmax has no Q/DQ pair,
    while the other operands have one. A transpose or a scale may be between a Q/DQ pair and its MatMul.

    ## Why it matters
    The builder fuses the two MatMuls and the Softmax into one kernel only if all four operands have the same 8-bit type
    or none is quantized. If one Q/DQ pair is missing, the builder makes three kernels with float16 tensors between
    them, which is slower than the model without quantization. Counting the quantized MatMuls does not show this.

    ## How to fix it
    Add a Q/DQ pair to every operand that has none. The output of the Softmax is in [0, 1]: use scale 1/448 in FP8 and
    1/127 in INT8. Where no fused 8-bit kernel exists (Q621), remove the other Q/DQ pairs instead; the finding says so.
    `dovetail repair` does both.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: if any one of the four Q/DQ pairs is missing, the engine has no
      layer `_gemm_mha_v2`, in FP8 and in INT8; with all four it has one, also if the key is transposed and the query
      scaled after the Q/DQ pair. With FP8 and fewer than 32 keys, and with INT8 and an output that is read in float,
      it has none with all four either; with no Q/DQ pair it has one in float16.
    """
    plan = subject.plan
    for attention in find_attention(subject.model.graph) if plan is not None else ():
        operands = _operands(attention, plan) if plan is not None else {}
        missing = [name for name, storage in operands.items() if not isinstance(storage, QParams)]
        if 0 < len(missing) < len(operands):
            names = " and its ".join(missing)
            message = f"the attention block has no Q/DQ pair on its {names}, so it is not fused into one kernel"
            stored = next(storage for storage in operands.values() if isinstance(storage, QParams))
            why = _no_kernel(subject.table, attention.scores, stored)
            fix = f"remove its other Q/DQ pairs: {why}" if why else f"add a Q/DQ pair to its {names}"
            yield Finding("Q421", at_attention(attention), message, Severity.ERROR, fix=fix)


@rule("Q422")
def qdq_on_attention_scores(subject: CheckInput) -> Iterator[Finding]:
    """The scores of an attention block have a Q/DQ pair, before the mask or the Softmax.

    ## What it finds
    Q/DQ pairs between the first MatMul of an attention block and its Softmax: on the scores, on a mask, or before
    the Add of the mask.

    ## Why it matters
    The fused kernel does not write the scores to memory. A Q/DQ pair needs them there, so the block is built as three
    kernels. Quantizers that put a Q/DQ pair before every Add cause this in exports with a mask.

    ## How to fix it
    Remove the Q/DQ pair; `dovetail repair` does this.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: with a pair on the scores, or before the Add of a mask, the
      engine has no layer `_gemm_mha_v2`; without the pair it has one.
    """
    plan = subject.plan
    for attention in find_attention(subject.model.graph) if plan is not None else ():
        path = attention.path[: attention.path.index(attention.softmax) + 1]
        quantized = [node for node in path if plan is not None and _reads_quantized(node, plan)]
        if quantized:
            node = quantized[0]
            message = (
                f"there is a Q/DQ pair on the scores, before {node.op_type} {node.name!r}, "
                "so the attention block is not fused into one kernel"
            )
            yield Finding("Q422", at_attention(attention), message, Severity.ERROR, fix="remove the Q/DQ pair")


def _reads_quantized(node: ir.Node, plan: Plan) -> bool:
    return any(isinstance(input_storage(node, index, plan), QParams) for index in range(len(node.inputs)))


@rule("Q423")
def nan_guard_in_attention(subject: CheckInput) -> Iterator[Finding]:
    """A Where that replaces NaN is between the Softmax and the second MatMul of a quantized attention block.

    ## What it finds
    `Softmax -> IsNaN -> Where` in an attention block whose operands have Q/DQ pairs, as torch exports
    scaled_dot_product_attention with a mask.

    ## Why it matters
    The builder does not fuse a quantized attention block with this Where: it makes three kernels or more. In float16 it
    does fuse the block, so only the quantized model becomes slow.

    ## How to fix it
    Remove the Where if no row can be masked completely, which is the only way to get a NaN; `dovetail fit` and
    `dovetail repair` do this.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: with the Where the engine has no layer `_gemm_mha_v2`, in FP8 and
      in INT8; without the Where it has one. nvidia-modelopt 0.47.0 leaves the Where in: 0 of 12 blocks of a ViT
      exported by dynamo with SDPA are fused.
    """
    plan = subject.plan
    for attention in find_attention(subject.model.graph) if plan is not None else ():
        operands = _operands(attention, plan).values() if plan is not None else ()
        guard = attention.guard
        if guard is not None and any(isinstance(storage, QParams) for storage in operands):
            message = (
                f"{guard.op_type} {guard.name!r} is between the Softmax and the second MatMul, "
                "so the attention block is not fused into one kernel"
            )
            fix = "remove it: `dovetail repair` does this"
            yield Finding("Q423", at_attention(attention), message, Severity.ERROR, fix=fix)


@rule("Q424")
def attention_operator(subject: CheckInput) -> Iterator[Finding]:
    """The ONNX operator Attention has Q/DQ pairs before it, or computes in float32.

    ## What it finds
    In QDQ models: the operator Attention (opset 23) with a quantized query, key or value, which is a warning; and one
    with float32 inputs, which is an error. In a float model it is not reported: `dovetail fit` writes it with MatMul,
    Softmax and MatMul.

    ## Why it matters
    The builder has fused kernels for this operator in float16 only. After Q/DQ pairs it silently computes in float16:
    they cost accuracy and time, and gain nothing. In float32 it is rejected, although the parser accepts it.

    ## How to fix it
    Quantize the float model with `dovetail fit`. Or write the operator with MatMul, Softmax and MatMul (torch: opset 22
    or lower), and add a Q/DQ pair to all four operands. Or remove the Q/DQ pairs and compute in float16.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built with head sizes 16, 32, 64 and 128 and 16, 64 and 197 tokens: after
      Q/DQ pairs in INT8 or FP8 the layer `_gemm_mha_v2` reads Half; in float32: "Attention operation was not supported
      by a dedicated kernel".
    """
    plan = subject.plan
    if plan is None or subject.raw is None:
        return
    written = {node.name: node for node in subject.raw.graph}
    for node in subject.model.graph:
        if not is_op(node, "Attention"):
            continue
        operands = zip(("query", "key", "value"), range(3), strict=True)
        quantized = [name for name, index in operands if isinstance(input_storage(node, index, plan), QParams)]
        raw = written.get(node.name)
        if raw is not None and raw.inputs[0] is not None and raw.inputs[0].dtype is ir.DataType.FLOAT:
            severity, effect = Severity.ERROR, "computes in float32, which the builder rejects"
        elif quantized:
            severity, effect = (
                Severity.WARNING,
                f"computes in float16: the Q/DQ pairs on its {', '.join(quantized)} gain nothing",
            )
        else:
            continue
        fix = (
            "write it with MatMul, Softmax and MatMul, with a Q/DQ pair on all four operands, or compute it in float16"
        )
        yield Finding("Q424", at_node(node), f"Attention {str(at_node(node))!r} {effect}", severity, fix=fix)


@rule("Q425")
def float32_attention(subject: CheckInput) -> Iterator[Finding]:
    """An attention block without Q/DQ pairs computes in float32, in a model whose other operators are quantized.

    ## What it finds
    In QDQ models whose float type is float32: attention blocks of which no operand has a Q/DQ pair, and which are one
    fused kernel in float16: the values have the size of the queries, and only the block itself reads the scores and the
    output of the Softmax. With `--option compute=fp32`, which asks for float32, they are not reported.

    ## Why it matters
    The builder has no fused attention kernel in float32: it makes at least three kernels with float32 tensors between
    them. The same block is one kernel in float16, and also in a float32 model if its operands are in 8 bit.

    ## How to fix it
    Convert the model to float16, as `dovetail fit` and `dovetail repair` do. Or quantize all four operands of the
    block: query, key, Softmax output and value.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: in float32 the engine has no layer `_gemm_mha_v2` (head sizes 8 to
      256, 1 to 1024 keys); in float16 it has one for head sizes 9 to 256 and 2 to 4096 keys, except for one head of one
      sample, and at rank 3 or for one masked head for head sizes other than 32 and 64. The same for sm80, sm86 and
      sm120 with head sizes 16 and 64; for sm75 the builder rejects float32 ("FP32 GEMM is not supported").
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built in float16 with head sizes 16 to 256 and value sizes 16 to 300: no
      such layer if the two differ (25 pairs), if the scores or the Softmax output are an output or read by a Neg or a
      second MatMul, or if only the key or only the value has one head for all. sm80 and sm120: the same for head size
      64 with value sizes 32 and 128, and for a Softmax output that is an output.
    """
    plan = subject.plan
    if plan is None or subject.raw is None or subject.table.float_encoding.dtype is DType.F32:
        return
    written = {node.name: node for node in subject.raw.graph}
    for attention in find_attention(subject.model.graph):
        raw = written.get(attention.scores.name)
        in_float32 = raw is not None and raw.outputs[0].dtype is ir.DataType.FLOAT
        quantized = any(isinstance(storage, QParams) for storage in _operands(attention, plan).values())
        if in_float32 and not quantized and fuses_in_float16(attention):
            message = "the attention block is in float32 and has no Q/DQ pairs, so it is not fused into one kernel"
            fix = "convert the model to float16 (`dovetail repair` does this), or quantize its four operands"
            yield Finding("Q425", at_attention(attention), message, Severity.WARNING, fix=fix)


@rule("Q522")
def saturated_softmax_output(subject: CheckInput) -> Iterator[Finding]:
    """The scale of an attention block's Softmax output is too small to represent 1.

    ## What it finds
    In QDQ models: the output of a Softmax in attention, in int8 with a scale below 1/127 or in float8 with a scale
    below 1/448, by more than the rounding of a value of 1.

    ## Why it matters
    A token that attends to a single other one has the weight 1, which saturates at the largest value of the
    grid. Calibration data in which no weight came close to 1 gives such a scale. The builder accepts every scale and
    fuses the block; the loss is in the model itself, on data with sharper attention.

    ## How to fix it
    Use the scale 1/127 in int8 and 1/448 in float8. A larger scale saturates nothing, but wastes a part of the grid.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: `_gemm_mha_v2` for scales of 0.5, 1 and 2 times 1/127 in INT8, and
      of 0.25 to 448 times 1/448 in FP8; ONNX Runtime's outputs of the bad case, with a scale of 0.25 times 1/127, are
      far from those of the float graph if every token attends to one other.
    """
    for attention, storage, scale in _softmax_scales(subject):
        highest, rounded = _ROUNDED_TO_HIGHEST[storage.dtype]
        if 1 / scale > rounded:
            message = (
                f"the Softmax output has the scale {scale:.4g} in {storage.dtype}: attention weights above "
                f"{highest * scale:.3g} saturate"
            )
            fix = f"use the scale 1/{highest:g}"
            numbers = {"scale": scale, "highest": highest * scale}
            yield Finding("Q522", at_attention(attention), message, Severity.WARNING, numbers, fix)


@rule("Q523")
def coarse_softmax_output(subject: CheckInput) -> Iterator[Finding]:
    """The scale of an attention block's Softmax output in INT8 is much larger than it needs to be.

    ## What it finds
    In QDQ models: the output of a Softmax in attention, in int8 with a scale of 2/127 or more. It is at most 1, so a
    scale of 1/127 represents all of it. float8 is not reported: its relative precision does not depend on the scale.

    ## Why it matters
    It is a note. Of the 127 steps only half or fewer are used, and attention weights below half of a step become zero:
    with a scale of 4/127 all below 0.016, which with 64 keys is the weight of every key that is not preferred.

    ## How to fix it
    Use the scale 1/127. `dovetail repair` does this, without calibration data.

    ## Seen on
    - every target, by arithmetic: 1 / (4/127) is 32 steps. In simulation, random scores with a standard deviation of 2
      lose 5 dB in the output of attention for every doubling of the scale (64 keys: 29, 24, 19 and 15 dB with 1, 2, 4
      and 8 times 1/127). The outputs of a digits ViT in w8a8 are at 40 dB with 1/127, 38 dB with 2/127, 32 dB with
      4/127 and 29 dB with 8/127.
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: the block is one kernel with any of these scales; ONNX Runtime's
      outputs of the bad case are far from those of the float graph if all keys have nearly the same weight.
    """
    for attention, storage, scale in _softmax_scales(subject):
        steps = 1 / scale
        if storage.dtype is DType.S8 and steps < _FEW_STEPS:
            message = (
                f"the Softmax output has the scale {scale:.4g} in int8: attention weights from 0 to 1 have {steps:.3g} "
                f"of 127 steps, and those below {scale / 2:.3g} become zero"
            )
            numbers = {"scale": scale, "steps": steps}
            yield Finding("Q523", at_attention(attention), message, Severity.NOTE, numbers, "use the scale 1/127")


def _softmax_scales(subject: CheckInput) -> Iterator[tuple[Attention, QParams, float]]:
    """The attention blocks whose Softmax output has one scale, in a type whose highest value is known."""
    plan = subject.plan
    for attention in find_attention(subject.model.graph) if plan is not None else ():
        storage = _operands(attention, plan)["softmax output"] if plan is not None else None
        if isinstance(storage, QParams) and storage.scale.size == 1 and storage.dtype in _ROUNDED_TO_HIGHEST:
            yield attention, storage, float(storage.scale.reshape(()))


@rule("Q621")
def attention_without_fused_kernel(subject: CheckInput) -> Iterator[Finding]:
    """A quantized attention block has no fused 8-bit kernel, because of its size or of the consumers of its output.

    ## What it finds
    Attention blocks with all operands in one 8-bit type for which the builder has no fused kernel:

    - INT8: a head size other than 16, 32 and 64; a key sequence of more than 512; or an output with a consumer that is
      not an INT8 MatMul, Gemm or Conv.
    - FP8: a key sequence shorter than 32.
    - Both: a mask, one head and more than one sample, with head size 32, in FP8 also with 64.

    ## Why it matters
    In float16 the block is one kernel in all these cases. In 8 bit it is three kernels, and slower.

    ## How to fix it
    Remove the Q/DQ pairs of this block, as `dovetail fit` does. Or use FP8 instead of INT8, or INT8 instead of FP8.
    If the consumers of its output are the cause, quantize all of them to INT8.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, built for sm89 with head sizes 8 to 256 and 1 to 2048 keys; the number of
      queries does not matter. Built for sm75, sm80, sm86, sm120 and sm121 with three sizes each, with the same results.
      Masked attention of one head: built for sm80, sm89 and sm120 with head sizes 8 to 256.
    """
    plan = subject.plan
    for attention in find_attention(subject.model.graph) if plan is not None else ():
        operands = list(_operands(attention, plan).values()) if plan is not None else []
        dtypes = {storage.dtype for storage in operands if isinstance(storage, QParams)}
        if len(dtypes) != 1 or not all(isinstance(storage, QParams) for storage in operands):
            continue
        why = _no_kernel(subject.table, attention.scores, operands[0])
        if why:
            yield Finding(
                "Q621", at_attention(attention), why, Severity.ERROR, fix="keep this attention block in float16"
            )


def _no_kernel(table: OpTable, node: ir.Node, storage: Storage) -> str:
    """Why the target's table does not support an activation-by-activation MatMul in this type."""
    for signature in table.ops["MatMul"].signatures:
        dtypes = [slot.encoding.dtype for slot in signature.inputs if not slot.constant]
        if dtypes == [storage.dtype, storage.dtype] and signature.when is not None:
            return signature.when(node)
    return ""
