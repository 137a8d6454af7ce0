"""A constant per channel that is added to the output of a ConvTranspose: HTP merges it into the bias wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of, is_op
from dovetail.model.place import at_node
from dovetail.passes.add_to_sub import add_to_sub, constant_term
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround

_CHANNEL = -3


def is_miscompiled(node: ir.Node) -> bool:
    """Whether an Add has a constant per channel and the output of a ConvTranspose, or of a Relu or Clip after one."""
    index = constant_term(node) if is_op(node, "Add") else None
    constant = None if index is None else constant_of(node.inputs[index])
    if index is None or constant is None or constant.ndim < -_CHANNEL or constant.shape[_CHANNEL] == 1:
        return False
    producer = _producer(node.inputs[1 - index])
    if producer is not None and is_op(producer, "Relu", "Clip"):
        producer = _producer(producer.inputs[0])
    return constant.size == constant.shape[_CHANNEL] and is_op(producer, "ConvTranspose")


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


@rule("Q559")
def constant_added_to_conv_transpose(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes the addition of a constant per channel after a ConvTranspose wrongly.

    ## What it finds
    Add of a constant with one value per channel to the output of a ConvTranspose, or of a Relu or Clip after one. QDQ
    and float models; a float model is checked after the rewrites of `dovetail fit`, which add the constant to the bias
    of the ConvTranspose if nothing else reads its output.

    ## Why it matters
    It is a batch normalization after the ConvTranspose, or a mean that is subtracted. The model compiles, but every
    channel is off by another amount, with 8 and 16 bits.

    ## How to fix it
    Add the constant to the bias of the ConvTranspose, or subtract its negative. `dovetail fit` and `dovetail repair` do
    this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: 1 x 1 and 3 x 3 with a stride of 2, 6 channels,
      9 x 10, with and without bias: 5 to 20 dB against the simulation, in 8 and 16 bits; with Sub 39 to 45 dB in 8 bits
      and 82 dB in 16 bits. Right in float16, with one number for all channels, with a tensor, after a Sigmoid,
      HardSwish, Mul or Reshape, and after a Conv.
    - qnn-htp: the same version, v68, v69, v73, v75, v79 and v81: 1 x 1, 6 channels, 9 x 10, 9 dB in 16 bits and 4 dB in
      8 bits after a Relu; with Sub 60 dB and more, and 40 dB.
    """
    for node in subject.model.graph.all_nodes():
        if is_miscompiled(node):
            yield Finding(
                "Q559",
                at_node(node),
                f"{say(node)} adds a constant per channel to the output of a ConvTranspose, which HTP computes wrongly",
                Severity.ERROR,
                fix="add it to the bias, or subtract its negative; `dovetail fit` and `dovetail repair` do this",
            )


WORKAROUND = Workaround("Q559", passes=(partial(add_to_sub, applies=is_miscompiled),))
