"""The facts about what HTP makes of a converted graph, by SDK version: kernels, limits and mixtures of precisions."""

from __future__ import annotations

from dovetail.targets.qairt.sdk import Answer, Confidence, SdkFact, Subject

_GUARDS = "AIMET's public overflow guards for HTP"
_INT32_BIAS = "github.com/quic/aimet, aimet_onnx/quantsim.py: _adjust_weight_scales_for_int32_bias"
HTP_CONFIG = "AIMET's public configuration for HTP v69 to v85"
# What was measured through ONNX Runtime's QNN provider, never with the SDK.
_PROVIDER = "onnxruntime-qnn 2.7.0 (QAIRT 2.51), which has the HTP compiler but no converter: rule {}"
_RF_DETR = "public report: RF-DETR Small, quantized with AIMET, qnn-onnx-converter of QAIRT 2.41, HTP v73"
ISSUE_4102 = "github.com/qualcomm/aimet issue 4102, QAIRT 2.33.0"

KERNEL_FACTS: tuple[SdkFact, ...] = (
    SdkFact(
        Subject.RANK_3_ADD,
        Answer.NO,
        "The context binary generator ends with 'could not create op: q::linearclip' on a 5D_TCM layout of tensors "
        "[4,257,384] and [1,1028,384].",
        _RF_DETR,
        Confidence.REPORTED,
        (2, 41),
        (2, 42),
    ),
    SdkFact(
        Subject.RANK_3_ADD,
        Answer.UNKNOWN,
        "The later 2.41 fails; no report is known about this version.",
        _RF_DETR,
        Confidence.NOT_KNOWN,
        before=(2, 41),
    ),
    SdkFact(
        Subject.RANK_3_ADD,
        Answer.UNKNOWN,
        "The earlier 2.41 fails; no report says that it was fixed. Through the QNN execution provider, which lowers "
        "MatMul to FullyConnected and has no converter, the same block compiles with QAIRT 2.47 to 2.51.",
        f"{_RF_DETR}; python -m bench.qairt_wheels",
        Confidence.NOT_KNOWN,
        (2, 42),
    ),
    SdkFact(
        Subject.ONE_PRECISION,
        Answer.YES,
        "Every reported failure is about a graph that mixes float16 and integers; RF-DETR wholly in float16 compiles.",
        f"{_RF_DETR}; {ISSUE_4102}",
        Confidence.INFERRED,
    ),
    SdkFact(
        Subject.SMALL_RATIO,
        Answer.NO,
        "HTP saturates such a channel, which is nearly dead in the weights, and the simulation does not show it. The "
        "limit was measured on the emulator through ONNX Runtime's provider, not with the SDK; AIMET has the same one.",
        f"{_GUARDS}; {_PROVIDER.format('Q507')}",
        Confidence.INFERRED,
    ),
    SdkFact(
        Subject.LARGE_BIAS,
        Answer.NO,
        "It exceeds the int32 accumulator. AIMET can raise the weight scales of such layers before it exports, but its "
        "files do not say whether it did. On the emulator through ONNX Runtime's provider, int32 biases at this limit "
        "are computed wrongly with 8-bit activations and correctly with 16-bit ones; larger ones cannot be stored.",
        f"{_GUARDS}; {_INT32_BIAS}; {_PROVIDER.format('Q563')}",
        Confidence.INFERRED,
    ),
    SdkFact(
        Subject.OWN_OUTPUT_SCALE,
        Answer.NO,
        "HTP has scale 1/65536 with zero point 0 for Sigmoid, 1/32768 with zero point 32768 for Tanh. That others are "
        "replaced was seen through ONNX Runtime's provider, not with the SDK.",
        f"{HTP_CONFIG}; {_PROVIDER.format('Q109')}",
        Confidence.INFERRED,
    ),
    SdkFact(
        Subject.ISLANDS_COMPILE,
        Answer.NO,
        "Every boundary between float16 and integers can pass on a layout that the next operator lacks a kernel for: "
        "keeping three layers in float moved the failure to four others, keeping all attention in float to 129 "
        "operators.",
        _RF_DETR,
        Confidence.REPORTED,
        (2, 41),
        (2, 42),
    ),
    SdkFact(
        Subject.ISLANDS_COMPILE,
        Answer.UNKNOWN,
        "No report is known about this version; with the later 2.41, keeping more layers in float moved the failure to "
        "others.",
        _RF_DETR,
        Confidence.NOT_KNOWN,
        before=(2, 41),
    ),
    SdkFact(
        Subject.ISLANDS_COMPILE,
        Answer.UNKNOWN,
        "With the earlier 2.41, keeping more layers in float moved the failure to others; no report says that it was "
        "fixed.",
        _RF_DETR,
        Confidence.NOT_KNOWN,
        (2, 42),
    ),
)
