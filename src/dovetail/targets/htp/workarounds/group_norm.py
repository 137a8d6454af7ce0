"""A group normalization as exporters write it: wrong on HTP for some sizes, unless it is directly behind a Conv."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op
from dovetail.model.place import at_node
from dovetail.passes.group_norm_to_layer_norm import group_norm_to_layer_norm, reshape_before
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP may compute this InstanceNormalization wrongly: behind a Reshape of anything but Conv or Conv+Relu.

    Which sizes are wrong is not known, which neighbors are is: see the rule.
    """
    reshape = reshape_before(node)
    if reshape is None:
        return False
    producer = _producer(reshape)
    return not is_op(_producer(producer) if is_op(producer, "Relu") else producer, "Conv")


def _producer(node: ir.Node | None) -> ir.Node | None:
    return None if node is None or node.inputs[0] is None else node.inputs[0].producer()


@rule("Q546")
def group_norm_as_instance_norm(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a group normalization that is written with InstanceNormalization wrongly for some sizes.

    ## What it finds
    InstanceNormalization behind a Reshape, as exporters write a group normalization, unless the Reshape reads a Conv or
    a Conv and Relu: quantized ones in QDQ models; in float models those that the rewrites of `dovetail fit` leave,
    because their scale or bias is not constant.

    ## Why it matters
    The model compiles, but the normalized tensor is wrong: -3 to 18 dB against the simulation, in 8 and in 16 bits. The
    residual blocks of many networks have it: Conv, Add, group normalization.

    ## How to fix it
    Write it as LayerNormalization over the elements of each group: Reshape to [batch, groups, elements],
    LayerNormalization with scale 1 and bias 0, Reshape back, Mul and Add. `dovetail fit` and `dovetail repair` do this.
    Directly behind a Conv leave it as it is: it is right there, and estimated to be three times as fast.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, behind Conv and Add with Mul and Add behind it:
      22 of 34 sizes wrong, most of those with more than 32 channels that are not a multiple of 32 and up to 64
      elements per channel: [1, 48, 4, 6] 0 dB, [1, 48, 4, 8] 76 dB; also [1, 160, 7, 19] with a Relu behind the Add
      (3 dB). Also behind Add and LeakyRelu, Mul or Concat, and behind SiLU ([1, 80, 3, 6]: 3 dB) and Mul ([1, 100,
      3, 19]: 0 dB). Behind Conv, with or without Relu, 72 random sizes were right.
    - qnn-htp: vendor's estimate for SoC 52, [1, 64, 32, 32] in 32 groups between two Convs, 16 bits: 94 us, as
      LayerNormalization 232 us; in one group 116 us and 420 us.
    """
    for node in subject.model.graph.all_nodes():
        if is_miscompiled(node) and _is_computed(subject, node):
            yield Finding(
                "Q546",
                at_node(node),
                f"{say(node)} normalizes groups of a reshaped tensor, which HTP computes wrongly for some sizes",
                Severity.WARNING,
                fix="write it as LayerNormalization over each group; `dovetail fit` and `dovetail repair` do this",
            )


def _is_computed(subject: CheckInput, node: ir.Node) -> bool:
    """Whether the node runs in integers, as far as is known."""
    plan, output = subject.plan, str(node.outputs[0].name)
    return plan is None or (output in plan.tensors and isinstance(plan.tensors[output].storage, QParams))


WORKAROUND = Workaround("Q546", passes=(partial(group_norm_to_layer_norm, applies=is_miscompiled),))
