"""Q7 and Q8 on HTP: messages of its compiler, and whether a device can load the compiled files."""

from __future__ import annotations

from dovetail.rules.rule import explanation

NOT_FOR_DEVICE = explanation(
    "Q701",
    "device_qairt_version_mismatch",
    """A compiled file was written by a QAIRT version whose files the device's runtime is not known to load.

    ## What it finds
    With `--option device_qairt=V`: the context binary or DLC was written by a QAIRT version that is too new for the
    device (an error), or this combination of versions was never tested (a warning).

    ## Why it matters
    A runtime rejects a context binary of a newer QAIRT when it loads the file, so the problem only appears on the
    device. The runtime compares the major and minor version, not the patch.

    ## How to fix it
    Compile with the onnxruntime-qnn version that contains the device's QAIRT version, compile on the device, or update
    QAIRT on the device. A DLC is less strict than a context binary (`--option dlc=1`).

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.3.0 to 2.7.0 (QAIRT 2.47 to 2.51), files of each version loaded by each of the five: a
      newer context binary is rejected in 10 of 10 combinations ("Using newer context binary on old SDK"), a newer DLC
      in none. The version in a compiled file is read in tests/backends/qnn_htp/test_qairt.py.
    """,
)

QAIRT_VERSION_UNKNOWN = explanation(
    "Q702",
    "compiled_file_without_qairt_version",
    """The QAIRT version that wrote a compiled file cannot be read from the file.

    ## What it finds
    Context binaries and DLCs that contain no QAIRT build number, or more than one.

    ## Why it matters
    Whether a device can load the file depends on this version, so it cannot be checked.

    ## How to fix it
    Compile again with a released version of onnxruntime-qnn, and test the file on the device before it ships.

    ## Seen on
    - qnn-htp: files of QAIRT 2.47 to 2.51 contain exactly one build number; this finding was not seen with them, but
      with a changed file (tests/rules/test_compiler_findings.py).
    """,
)

NO_DLC = explanation(
    "Q703",
    "dlc_not_written",
    """A DLC was requested but could not be written.

    ## What it finds
    `--option dlc=1`, if the DLC serializer of onnxruntime-qnn ends with an error. The context binary is written anyway.

    ## Why it matters
    Without a DLC, a device that compiles the graph itself has no file to compile.

    ## How to fix it
    Read the error in the message. A missing library means a broken installation: install `dovetail-fit[qnn]` again.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0) with libQnnIr.so removed (tests/backends/qnn_htp/test_qairt.py).
    """,
)

OTHER_ARCHITECTURE = explanation(
    "Q704",
    "compiled_for_different_architecture",
    """The compiler compiled for a different HTP architecture than the target names.

    ## What it finds
    A target such as `qnn-htp:soc90/v73`, if the compiler maps the SoC number to a different architecture.

    ## Why it matters
    The compiler uses the SoC number only. Kernels, float16 support and memory differ between architectures, so its
    results, including what it rejects, do not apply to the architecture in the target's name.

    ## How to fix it
    If the SoC number is right, use the architecture that the compiler reports; otherwise correct the number.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): `soc90/v73` is compiled for v75 ("Option: arch = 75";
      tests/backends/qnn_htp/test_chips.py).
    """,
)

NODE_REJECTED = explanation(
    "Q801",
    "node_rejected_by_compiler",
    """The compiler rejects a node, and the reason is missing or not known.

    ## What it finds
    Nodes that fail validation, cannot be added to the graph, or prevent it from being finalized, if the compiler gives
    no reason or one that has no code of its own (Q802 to Q806).

    ## Why it matters
    If one node is rejected, the model is not compiled.

    ## How to fix it
    Read the compiler's error in the message and in `compile/compile.log`. Keep the operator in float (`--keep`),
    replace it with other operators, or split the model before it.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): logs of a rejected node from which the line with the reason was
      removed (tests/rules/test_compiler_findings.py).
    """,
)

OPERATOR_NOT_SUPPORTED = explanation(
    "Q802",
    "operator_not_supported_by_compiler",
    """The compiler does not support an operator.

    ## What it finds
    Nodes that are rejected because onnxruntime-qnn does not translate the operator in any precision, or only with a
    fixed output size (NonMaxSuppression).

    ## Why it matters
    If one node is rejected, the model is not compiled.

    ## How to fix it
    Replace it with supported operators (Q101 reports known unsupported ones before compiling), or run it after the
    model, outside the target.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: Erf ("are not supported by QNN EP"), NonMaxSuppression
      (tests/backends/qnn_htp/test_compile_errors.py).
    """,
)

DTYPES_NOT_SUPPORTED = explanation(
    "Q803",
    "dtypes_not_supported_by_compiler",
    """The compiler supports the operator, but has no kernel for its dtypes, scales or zero points.

    ## What it finds
    Nodes that are rejected because of the dtypes of their inputs and outputs, per-channel scales on an activation, a
    zero point where the kernel requires symmetric quantization, or float on a chip without float16.

    ## Why it matters
    If one node is rejected, the model is not compiled. If this happens when the graph is finalized, the error is
    1002 MEM_ALLOC, although memory is not the problem.

    ## How to fix it
    The message contains the requested dtypes. Quantize all inputs of the operator to the same bit width, activations
    with one scale, and use int32 only for the bias of Conv and Gemm. To run in float, choose a chip with float16.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): "could not create op", "Unsupported input/output datatypes",
      "per-channel quant", "expected equal to", "SocModel doesn't support FP16"
      (tests/backends/qnn_htp/test_compile_errors.py).
    """,
)

SHAPE_NOT_SUPPORTED = explanation(
    "Q804",
    "shape_not_supported_by_compiler",
    """The compiler supports the operator, but not with this rank, axis, equation or dynamic shape.

    ## What it finds
    Nodes that are rejected because of the rank of a tensor, the axis of a normalization, the equation of an Einsum,
    MatMul operands of different rank, or a shape that is not known at compile time.

    ## Why it matters
    If one node is rejected, the model is not compiled.

    ## How to fix it
    Merge dimensions with a Reshape, move the axis to the end with a Transpose, write an Einsum as MatMul, or pin shapes
    with `--shape`. Rules Q601 to Q604 find most of these problems before compiling.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: "incorrect Rank 6", "along the last axis", "unsupported
      equation", "MatMul failed 3110", "output shape must be static" (tests/backends/qnn_htp/test_compile_errors.py).
    """,
)

TOO_LARGE_FOR_VTCM = explanation(
    "Q805",
    "operator_too_large_for_vtcm",
    """An operator needs more tightly coupled memory (VTCM) than is available.

    ## What it finds
    Nodes for which finalizing the graph fails with "not sufficiently tiled to fit in TCM".

    ## Why it matters
    The compiler splits most operators into tiles, but not all of them: one row of a Softmax must fit as a whole.

    ## How to fix it
    Raise `--option vtcm_mb` up to the VTCM size of the chip, or split the tensor.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, vtcm_mb=1: a Softmax over 900 000 16-bit values
      (tests/backends/qnn_htp/test_compile_errors.py).
    """,
)

NEEDS_NEWER_ARCHITECTURE = explanation(
    "Q806",
    "operator_requiring_newer_architecture",
    """An operator with these dtypes requires a newer HTP architecture than the chip has.

    ## What it finds
    Nodes that are rejected with "incorrect Value 69, expected >= 73": the first number is the chip's architecture.

    ## Why it matters
    A plan that compiles for one chip may not compile for an older one.

    ## How to fix it
    Quantize the operands differently (a MatMul of 16 by 8 bits instead of 16 by 16), or choose a newer chip.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), v69: MatMul of two 16-bit activations requires v73
      (tests/backends/qnn_htp/test_compile_errors.py).
    """,
)

NO_NODE_NAMED = explanation(
    "Q807",
    "compiler_error_without_node_name",
    """The compiler failed, and its log does not name the node.

    ## What it finds
    Compilations without a result, if no line of the log reports a rejected node in a known format. The message quotes
    the last error line of the log.

    ## Why it matters
    Whether the model can be compiled is then unknown: the verdict `compiled` is `not_checked`, not `fail`.

    ## How to fix it
    Read `compile/compile.log`. If it does name a node, Dovetail does not know the format of this log: please report it.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): logs from which the lines about the rejected node were removed
      (tests/rules/test_compiler_findings.py).
    """,
)

ERROR_IN_ACCEPTED_GRAPH = explanation(
    "Q808",
    "error_in_accepted_graph",
    """The compiler accepted the graph, but logged an error.

    ## What it finds
    Error lines in the log of a compilation that wrote a context binary; each line is reported once. A line with a known
    meaning has a code of its own (Q809).

    ## Why it matters
    The effect on the results is unknown. The verdict `numerics` shows whether they are correct.

    ## How to fix it
    Check the verdict `numerics`; if it fails, check the tensor that it names.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): the log of Q809 with another error line
      (tests/rules/test_compiler_findings.py). Error lines that appear for every graph are not reported.
    """,
)

SCALE_RATIO_TOO_LARGE = explanation(
    "Q809",
    "scale_ratio_too_large",
    """The input scale of an operator is so much larger than its output scale that the kernel cannot requantize.

    ## What it finds
    "scale too large for requant" in the log of an accepted graph.

    ## Why it matters
    Requantization multiplies by the ratio of input scale and output scale. What the kernel computes with a ratio that
    it cannot represent is not documented; the verdict `numerics` shows whether the results are correct.

    ## How to fix it
    Find out why the output's range is so small or the input's so large. A few outliers widen a range
    (`--range percentile` excludes them), and a nearly constant tensor has a tiny one.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: a Concat of 16-bit tensors with scales 1.3 and 0.0001
      ("scale too large for requant qu16->qu16: 13000.0"; tests/backends/qnn_htp/test_compile_errors.py).
    """,
)
