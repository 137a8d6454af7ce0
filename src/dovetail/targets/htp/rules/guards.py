"""Q4 on HTP: what exporters leave in attention and integers do not need."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op
from dovetail.model.place import at_node
from dovetail.plan.validate import storage_on_edge
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.chips import chip_of


@rule("Q406")
def nan_test_of_quantized_tensor(subject: CheckInput) -> Iterator[Finding]:
    """An IsNaN reads a quantized tensor, which cannot be NaN.

    ## What it finds
    In QDQ models: IsNaN of a quantized tensor, most often `Softmax -> IsNaN -> Where` in attention, as torch exports
    scaled_dot_product_attention with a mask.

    ## Why it matters
    HTP has no integer kernel for IsNaN: the compiler inserts a Dequantize, and tests every attention weight in float,
    for a result that is always false. It costs more than the arithmetic of the block.

    ## How to fix it
    Remove the IsNaN and the Where before quantizing; `dovetail fit` and `dovetail repair` do this where no row can be
    masked completely.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graph: the tensor is dequantized before IsNan.
      SoC 52, vendor's estimates of an attention block in w8a16 (`python -m bench.htp_patterns`): 67 us without the
      guard and 283 us with it (3 heads, 197 tokens), 499 and 3395 us (24 heads, 257 tokens). A mask of zeros costs
      nothing. A whole ViT-tiny block, quantized with onnxruntime's QNN helpers (`python examples/vit_on_htp.py`): 329
      us with guard and mask, 109 us without, 139 us in float16.
    """
    plan = subject.plan
    severity = Severity.WARNING if chip_of(subject).has_float16 else Severity.ERROR
    for node in subject.model.graph if plan is not None else ():
        value = node.inputs[0] if is_op(node, "IsNaN") else None
        if plan is None or value is None:
            continue
        storage = storage_on_edge(plan, Edge(node.name or "", 0), str(value.name))
        if isinstance(storage, QParams):
            message = f"{say(node)} tests a tensor in {storage.dtype}, which cannot be NaN: HTP dequantizes it to do so"
            fix = "remove the IsNaN and the Where that reads it, before quantizing; `dovetail repair` does this"
            yield Finding("Q406", at_node(node), message, severity, fix=fix)
