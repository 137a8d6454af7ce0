"""A group normalization as exporters write it: wrong on HTP in some graphs, unless after a Conv."""

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


def may_be_miscompiled(node: ir.Node) -> bool:
    """Whether HTP may compute this InstanceNormalization after a Reshape wrongly.

    Which sizes are wrong is not known; after a Conv, or a Conv and Relu, none was.
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
    """HTP computes a group normalization that is written with InstanceNormalization wrongly in some graphs.

    ## What it finds
    InstanceNormalization after a Reshape, as exporters write a group normalization, unless the Reshape reads a Conv or
    a Conv and Relu: quantized ones in QDQ models; in float models those that the rewrites of `dovetail fit` leave,
    because their scale or bias is not constant.

    ## Why it matters
    The model compiles, but the normalized tensor is wrong: -3 to 18 dB against the simulation, in 8 and in 16 bits. The
    residual blocks of many networks have it: Conv, Add, group normalization.

    ## How to fix it
    Write it as LayerNormalization over the elements of each group: Reshape to [batch, groups, elements],
    LayerNormalization with scale 1 and bias 0, Reshape back, Mul and Add. `dovetail fit` and `dovetail repair` do this.
    Directly after a Conv leave it as it is: it is right there, and estimated to be three times as fast.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, with Mul and Add after it. After Conv and Add
      20 of 34 sizes are wrong: [1, 48, 4, 6] 0 dB, [1, 48, 4, 8] 76 dB. Also after Add and Relu ([1, 160, 7, 19]: 3
      dB), LeakyRelu, Mul or Concat, after SiLU ([1, 80, 3, 6]: 3 dB) and after Mul ([1, 100, 3, 19]: 0 dB). In small
      graphs only numbers of channels above 32 that are not powers of two were wrong, but in MobileViTv2 [1, 128, 4, 1]
      after Conv and Add is (0 dB). Right: 120 random sizes after Conv, with or without Relu; 24 after MatMul.
    - qnn-htp: vendor's estimate for SoC 52, [1, 64, 32, 32] in 32 groups between two Convs, 16 bits: 94 us, as
      LayerNormalization 232 us; in one group 116 us and 420 us.
    """
    for node in subject.model.graph.all_nodes():
        if may_be_miscompiled(node) and _is_computed(subject, node):
            yield Finding(
                "Q546",
                at_node(node),
                f"{say(node)} normalizes groups of a reshaped tensor, which HTP computes wrongly in some graphs",
                Severity.WARNING,
                fix="write it as LayerNormalization over each group; `dovetail fit` and `dovetail repair` do this",
            )


def _is_computed(subject: CheckInput, node: ir.Node) -> bool:
    """Whether the node runs in integers, as far as is known."""
    plan, output = subject.plan, str(node.outputs[0].name)
    return plan is None or (output in plan.tensors and isinstance(plan.tensors[output].storage, QParams))


WORKAROUND = Workaround("Q546", passes=(partial(group_norm_to_layer_norm, applies=may_be_miscompiled),))
