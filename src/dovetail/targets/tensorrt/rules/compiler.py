"""Q8 on TensorRT: what its builder made of every attention block."""

from __future__ import annotations

from dovetail.rules.rule import explanation

NOT_FUSED = explanation(
    "Q821",
    "attention_not_fused",
    """An attention block is not the one fused kernel that was planned.

    ## What it finds
    Attention blocks that are several layers in the engine's layer list, or one layer in another type than planned. It
    is an error if the block is one kernel in the same graph in float16, because then quantization broke it; a note
    if it is not one kernel in float16 either; a warning if there is no float16 layer list to compare with.

    ## Why it matters
    Three kernels with float16 tensors between them are slower than one float16 kernel: the quantized model is slower
    than the float model, although every MatMul in it runs in 8 bit.

    ## How to fix it
    The message names the cause: an operand without a Q/DQ pair, a Q/DQ pair on the scores, a Where that replaces NaN,
    or a size for which there is no fused kernel. Rules Q421, Q422, Q423, Q425 and Q621 explain how to fix them.
    `dovetail repair` fixes most of them.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: the layer list has `_gemm_mha_v2`, or a layer for each operator of
      the attention block (tests/backends/tensorrt/test_target.py).
    """,
)

NOT_IN_LAYER_LIST = explanation(
    "Q822",
    "attention_not_in_layer_list",
    """No layer of the engine names the nodes of an attention block.

    ## What it finds
    Attention blocks whose two MatMuls are not named by any layer in the engine's layer list.

    ## Why it matters
    It is not known how the engine computes the attention block, so `fidelity` is not checked for it.

    ## How to fix it
    This is not a problem of the model. Read the layer list (`layers.txt`, or `layer_info.json` from a device): if the
    attention is there under another name, please report it.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: layer lists from which the layers of the attention block were removed
      (tests/rules/test_compiler_findings.py).
    """,
)
