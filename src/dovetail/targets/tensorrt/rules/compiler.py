"""Q8 on TensorRT: what its builder made of every attention."""

from __future__ import annotations

from dovetail.rules.rule import explanation

NOT_ONE_KERNEL = explanation(
    "Q821",
    "attention_not_one_kernel",
    """An attention is not the one fused kernel that was planned.

    ## What it finds
    In the layer list of the engine: attention blocks that are several layers, or one in another type than planned. It
    is an error where the same graph in float16 has one kernel, so that 8 bit cost it; a note where float16 has none
    either; a warning where there is no list of float16 to compare with.

    ## Why it matters
    Three kernels with float16 between them are slower than one in float16: the quantized model is then slower than
    the model it was made from, although every MatMul in it runs in 8 bit.

    ## How to fix it
    The message names the operand without a Q/DQ pair, the pair on the scores, the Where against NaN, or the size for
    which there is no kernel; rules Q421 to Q423 and Q621 say what to do about each. `dovetail repair` does most of it.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: the layer list has `_gemm_mha_v2`, or the parts of the attention.
    """,
)

NOT_IN_LAYER_LIST = explanation(
    "Q822",
    "attention_not_in_layer_list",
    """No layer of the engine says that it does the work of an attention.

    ## What it finds
    Attention blocks none of whose two MatMuls is named by a layer of the list.

    ## Why it matters
    What became of the attention is not known, so `fidelity` is not checked for it.

    ## How to fix it
    Nothing is wrong with the model as such. Read the layer list (`layers.txt`, or `layer_info.json` of a device):
    where the attention is there under another name, please report it.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: lists from which the layers of the attention were taken out.
    """,
)
