"""Q7 and Q8 on HTP: what its compiler says, and what becomes of its files on a device."""

from __future__ import annotations

from dovetail.rules.rule import explanation

NOT_FOR_DEVICE = explanation(
    "Q701",
    "file_that_device_may_not_load",
    """A compiled file was made by a QAIRT version that the device's runtime is not known to load.

    ## What it finds
    With `--option device_qairt=V`: the context binary or DLC was written by a QAIRT that is too new for the one on the
    device (an error), or the pair of versions was never tried (a warning).

    ## Why it matters
    A runtime refuses a context binary of a newer QAIRT when it is loaded, which is the first time that a device shows
    it. The check compares major and minor version, not the patch.

    ## How to fix it
    Compile with the onnxruntime-qnn that carries the device's QAIRT, compile on the device, or update its QAIRT. A DLC
    is less strict than a context binary (`--option dlc=1`).

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.3.0 to 2.7.0 (QAIRT 2.47 to 2.51), every file given to each of the five: a newer
      context binary is refused 10 times of 10 ("Using newer context binary on old SDK"), a DLC never.
    """,
)

BUILDER_NOT_KNOWN = explanation(
    "Q702",
    "file_without_qairt_version",
    """Which QAIRT version made a compiled file cannot be read from it.

    ## What it finds
    Context binaries and DLCs in which no build number of QAIRT is written, or more than one.

    ## Why it matters
    Whether a device can load the file depends on that version, so it cannot be said here.

    ## How to fix it
    Compile again with a released onnxruntime-qnn, and try the file on the device before it ships.

    ## Seen on
    - qnn-htp: files of QAIRT 2.47 to 2.51 have one build number each; not seen in a file of these versions.
    """,
)

NO_DLC = explanation(
    "Q703",
    "dlc_that_was_not_written",
    """A DLC was asked for and was not written.

    ## What it finds
    `--option dlc=1` where the writer of onnxruntime-qnn ends with an error. The context binary is there all the same.

    ## Why it matters
    There is nothing to ship where the device is to compile the graph itself.

    ## How to fix it
    Read the error in the message. A missing library means a broken installation: install `dovetail-fit[qnn]` again.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0) with libQnnIr.so taken away.
    """,
)

OTHER_ARCHITECTURE = explanation(
    "Q704",
    "compiled_for_another_architecture",
    """The compiler worked for another HTP architecture than the one that was named.

    ## What it finds
    A target such as `qnn-htp:soc90/v73` where the compiler takes the SoC number for another architecture.

    ## Why it matters
    The compiler goes by the number. Kernels, float16 and memory differ between architectures, and so does what it
    refuses: nothing that it said is about the chip that was meant.

    ## How to fix it
    Name the architecture that the compiler reports, if the SoC number is right; else correct the number.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): SoC 90 named as v73 is compiled for v75 ("Option: arch = 75").
    """,
)

NODE_REFUSED = explanation(
    "Q801",
    "node_refused_by_compiler",
    """The compiler refuses a node for a reason that is not known here.

    ## What it finds
    Nodes that fail validation, cannot be added to the graph or stop it from being finalized, where the compiler gives
    no reason or one that has no code of its own (Q802 to Q806).

    ## Why it matters
    One refused node is enough for there to be no compiled model.

    ## How to fix it
    Read the compiler's words in the message and `compile/compile.log`. Keep the operator in float (`--keep`), write it
    in other operators, or cut the model in front of it.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): refusals whose line with the reason is missing.
    """,
)

OPERATOR_REFUSED = explanation(
    "Q802",
    "operator_refused_by_compiler",
    """The compiler has no such operator.

    ## What it finds
    Nodes that are refused because onnxruntime-qnn has no translation of the operator, in any precision, or none
    without a size that is known beforehand (NonMaxSuppression).

    ## Why it matters
    One refused node is enough for there to be no compiled model.

    ## How to fix it
    Write it in operators that exist (Q101 has a list of what lacks), or leave it behind the end of the model.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: Erf ("are not supported by QNN EP"), NonMaxSuppression.
    """,
)

TYPES_REFUSED = explanation(
    "Q803",
    "types_refused_by_compiler",
    """The compiler has the operator, but no kernel for these types and scales.

    ## What it finds
    Nodes that are refused for the dtypes of what they read and write, for scales per channel on an activation, for a
    zero point where the kernel is symmetric, or for float on a chip without float16.

    ## Why it matters
    One refused node is enough for there to be no compiled model. Where the graph is finalized the error is
    1002 MEM_ALLOC, although memory is not short.

    ## How to fix it
    The message says which types were asked for. Store all that the operator reads in one width, activations with one
    scale, and int32 only as the bias of Conv and Gemm; for float choose a chip with float16.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): "could not create op", "Unsupported input/output datatypes",
      "per-channel quant", "expected equal to", "SocModel doesn't support FP16".
    """,
)

SHAPE_REFUSED = explanation(
    "Q804",
    "shape_refused_by_compiler",
    """The compiler has the operator, but not for this rank, axis, equation or open shape.

    ## What it finds
    Nodes that are refused for the rank of a tensor, for the axis of a normalization, for the equation of an Einsum, for
    MatMul operands of unlike rank, or because a shape is not known when it is compiled.

    ## Why it matters
    One refused node is enough for there to be no compiled model.

    ## How to fix it
    Merge dimensions with a Reshape, bring the axis to the end with a Transpose, write an Einsum as MatMul, pin shapes
    with `--shape`. Rules Q601 to Q604 find most of these before anything is compiled.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: "incorrect Rank 6", "along the last axis", "unsupported
      equation", "MatMul failed 3110", "output shape must be static".
    """,
)

MEMORY_REFUSED = explanation(
    "Q805",
    "operator_too_large_for_compiler",
    """One operator needs more tightly coupled memory (VTCM) than it may have.

    ## What it finds
    Nodes for which finalizing the graph ends in "not sufficiently tiled to fit in TCM".

    ## Why it matters
    The compiler cuts most operators into tiles, but not all: one row of a Softmax has to fit as a whole.

    ## How to fix it
    Raise `--option vtcm_mb` to what the chip has, or split the tensor.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, vtcm_mb=1: a Softmax over 900 000 16-bit values.
    """,
)

ARCHITECTURE_REFUSED = explanation(
    "Q806",
    "operator_of_newer_architecture",
    """An operator in this form needs a newer HTP architecture than the chip has.

    ## What it finds
    Nodes that are refused with "incorrect Value 69, expected >= 73": the first number is the chip's architecture.

    ## Why it matters
    A plan that compiles for one chip does not for an older one.

    ## How to fix it
    Store the operands in another form (a MatMul of 16 by 8 bit in place of 16 by 16), or name a newer chip.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), v69: MatMul of two 16-bit activations needs v73.
    """,
)

NO_NODE_NAMED = explanation(
    "Q807",
    "compiler_error_without_a_node",
    """The compiler failed, and its log does not say at which node.

    ## What it finds
    Runs that made nothing, where no line of the log is a refusal in a form that is known. The last line that says
    error is repeated.

    ## Why it matters
    Whether the model can be compiled is then not known: the verdict `compiled` is `not_checked`, not a failure.

    ## How to fix it
    Read `compile/compile.log`. Where it names a node after all, the log has a form that is new: please report it.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): logs with the lines of the refusal taken out.
    """,
)

ERROR_BUT_TAKEN = explanation(
    "Q808",
    "error_in_accepted_graph",
    """The compiler took the graph, and called something in it an error.

    ## What it finds
    Lines of the log that say error although the compiler made a context binary; each once. What has a known meaning has
    a code of its own (Q809).

    ## Why it matters
    What it means for the numbers is not known. The verdict `numerics` says whether they hold.

    ## How to fix it
    Look at `numerics`; where it fails, at the tensor that it names.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0); of the lines that every graph gets, none is reported.
    """,
)

RATIO_OF_SCALES = explanation(
    "Q809",
    "scales_too_far_apart",
    """An operator's output has a scale so much finer than its input's that the kernel cannot represent the ratio.

    ## What it finds
    "scale too large for requant" in the log of a graph that was taken.

    ## Why it matters
    What the kernel computes with a ratio that it cannot represent is not documented; the verdict `numerics` shows it.

    ## How to fix it
    Find out why the output's range is so small, or the input's so large: a few outliers blow up a range
    (`--range percentile`), and a tensor that is nearly constant gets a tiny one.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: a Concat of 16-bit tensors with scales 1.3 and 0.0001
      ("scale too large for requant qu16->qu16: 13000.0").
    """,
)
