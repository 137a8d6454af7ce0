"""Softplus: inaccurate on HTP, and wrong for some sizes."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op
from dovetail.model.place import at_node
from dovetail.passes.softplus_to_sigmoid import softplus_to_sigmoid
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


@rule("Q544")
def inaccurate_softplus(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes Softplus inaccurately, and for some sizes of the tensor wrongly.

    ## What it finds
    Every Softplus, also as part of a Mish, `x * Tanh(Softplus(x))`. A float model is checked after the rewrites of
    `dovetail fit`, which leave none.

    ## Why it matters
    Its result agrees with the simulation to 40 dB at most, in float16 and in 16-bit integers. After a 16-bit
    convolution it is wrong at the sizes of Q541 (9 to 12 rows; more rows with at most 8 columns and 32 channels): 6 to
    11 dB.

    ## How to fix it
    Write `Softplus(x)` as `Relu(x) - Log(Sigmoid(Abs(x)))`, and `Tanh(Softplus(x))` as `(1 - p) / (1 + p)` with `p =
    Sigmoid(-x)^2`. `dovetail fit` and `dovetail repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: 40 dB after a Conv to 8 x 8 and 20 x 20, 10.9 dB
      at 10 x 20, 8.7 dB at 13 x 8; rewritten 70 dB at each. A Mish has 13.8 to 44 dB, rewritten 68 to 70 dB.
    - qnn-htp: onnxruntime-qnn 2.4.0 and 2.6.0 (QAIRT 2.48.40 and 2.50.40), SoC 43, emulated: the same results on 10 x
      20 and 8 x 8.
    """
    for node in subject.model.graph.all_nodes():
        if is_op(node, "Softplus"):
            yield Finding(
                "Q544",
                at_node(node),
                f"{say(node)}: HTP computes Softplus with 40 dB at most, and wrongly for some sizes",
                Severity.WARNING,
                fix="write it with Sigmoid; `dovetail fit` and `dovetail repair` do this",
            )


WORKAROUND = Workaround("Q544", passes=(softplus_to_sigmoid,))
