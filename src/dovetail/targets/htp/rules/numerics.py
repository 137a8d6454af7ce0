"""Q5 on HTP: numbers that differ although nothing was changed."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule


@rule("Q504")
def order_of_equal_scores(subject: CheckInput) -> Iterator[Finding]:
    """A TopK orders equal values in its own way.

    ## What it finds
    Every TopK, in float and in QDQ models.

    ## Why it matters
    ONNX lets the lower index win among equal values, HTP does not. Quantized scores are often equal, and float16 makes
    more of them so: the boxes of a detector come out in another order, and element by element the outputs look wrong
    where they are not. The operator runs in float (Q103).

    ## How to fix it
    Nothing, if the rows are a set: compare them matched by score and box, as `dovetail fit` does, or in front of the
    TopK. Where the order matters, leave the TopK out of the model and sort on the CPU.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: TopK of rounded scores returns equal values and
      other indices than onnxruntime 1.31.1 on the CPU.
    """
    for node in subject.model.graph.all_nodes():
        if is_op(node, "TopK"):
            yield Finding(
                "Q504",
                at_node(node),
                f"{say(node)}: among equal values HTP does not return the lowest index first, as ONNX says",
                Severity.NOTE,
                fix="compare the rows as a set, or leave the TopK out of the model",
            )
