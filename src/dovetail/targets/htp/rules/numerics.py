"""Q5 on HTP: outputs that differ from ONNX although the graph is compiled as planned."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule


@rule("Q504")
def topk_tie_order(subject: CheckInput) -> Iterator[Finding]:
    """HTP's TopK returns equal values in a different order than ONNX.

    ## What it finds
    Every TopK, in float and in QDQ models.

    ## Why it matters
    Among equal values ONNX returns the lower index first; HTP does not. Quantized scores are often equal, and float16
    adds more ties. The boxes of a detector are then returned in a different order, and an element-by-element comparison
    of the outputs fails although they are correct. The operator runs in float (Q103).

    ## How to fix it
    Nothing, if the order of the rows does not matter: match the rows by score and box before comparing them, as
    `dovetail fit` does, or compare the inputs of the TopK. If the order matters, remove the TopK from the model and
    sort on the CPU.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: TopK of rounded scores returns the same values
      but different indices than onnxruntime 1.31.1 on the CPU.
    """
    for node in subject.model.graph.all_nodes():
        if is_op(node, "TopK"):
            yield Finding(
                "Q504",
                at_node(node),
                f"{say(node)}: among equal values HTP does not return the lowest index first, as ONNX specifies",
                Severity.NOTE,
                fix="match the rows before comparing them, or remove the TopK from the model",
            )
