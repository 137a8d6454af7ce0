"""Find the outputs that are class scores: the largest score in a row is the predicted class."""

from __future__ import annotations

import re

import onnx_ir as ir

from dovetail.model.edit import is_float, is_op, shape_of

_SOFTMAX_OPS = ("LogSoftmax", "Softmax")
# Operators that may be between the one that computes the scores and the output.
_PASSED_OVER = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_CLASS_WORDS = {"class", "classes", "logit", "logits", "prob", "probs", "probability", "probabilities"}
_CLASS_WORDS |= {"score", "scores", "softmax"}


def class_outputs(graph: ir.Graph) -> frozenset[str]:
    """The graph outputs that hold one score per class and sample, as far as the graph shows it.

    - They are float and [batch, classes] with two classes or more, where every input has the same batch size: the
      rows [N, 4] of a detector's boxes are not samples.
    - They come from a Softmax or LogSoftmax, or their name contains a word such as ``logits``, ``scores``, ``probs`` or
      ``classes``. An embedding or a regression output is also [batch, n] and also ends in a Gemm or MatMul, but has no
      top class, so an output without such a name or operator does not count.
    """
    batches = {(shape_of(value) or ())[:1] for value in graph.inputs}
    return frozenset(
        output.name or ""
        for output in graph.outputs
        if _one_row_per_sample(output, batches) and _looks_like_class_scores(output)
    )


def _one_row_per_sample(output: ir.Value, batches: set[tuple[int, ...]]) -> bool:
    shape = shape_of(output) or ()
    return is_float(output) and len(shape) == 2 and shape[1] > 1 and batches == {shape[:1]}


def _looks_like_class_scores(output: ir.Value) -> bool:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", output.name or "")
    if _CLASS_WORDS & set(re.split(r"[^a-z]+", spaced.lower())):
        return True
    node = output.producer()
    while node is not None and is_op(node, *_PASSED_OVER) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and is_op(node, *_SOFTMAX_OPS)
