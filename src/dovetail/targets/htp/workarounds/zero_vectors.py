"""An L2 normalization of vectors that are zero because of padding: HTP makes unit vectors of them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.passes.mask_zero_vectors import mask_zero_vectors, zero_vectors
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


@rule("Q554")
def l2_norm_of_padding(subject: CheckInput) -> Iterator[Finding]:
    """HTP makes unit vectors of padding that is normalized.

    ## What it finds
    LpNormalization, and division of a tensor by its norm, if some of the vectors are zero whatever the inputs are: a
    constant Pad of zeros, followed by linear layers without bias and by operators that move elements. A float model is
    checked after the rewrites of `dovetail fit`.

    ## Why it matters
    The keys of SwinV2 have no bias, so those of padded tokens are zero, and stay zero when they are normalized. On HTP
    a linear layer of 16 bits returns one step less than zero for an input of zeros if the zero point of its input is
    not 32768. The normalization makes a unit vector of that: attention to padding is as strong as to any other token.

    ## How to fix it
    Multiply the normalized tensor by a constant that is 0 for padding and 1 elsewhere. `dovetail fit` and `dovetail
    repair` do this. Or give the linear layer a bias, or choose an image size that needs no padding.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: MatMul of 16 bits with zero points of 30000,
      33000 and 34190 after a Pad is one step below zero in some channels of the padded rows. The normalized tensor
      agrees with the simulation to 0 dB, with a zero point of 32768 to 67 dB. Window attention of 13 x 13 tokens in
      windows of 4: 25 dB, with the mask 69 dB; of 7 x 6 in windows of 5: 10 and 69 dB.
    """
    for node, mask in zero_vectors(subject.model.graph).items():
        count = int((~mask).sum())
        yield Finding(
            "Q554",
            at_node(node),
            f"{say(node)}: {count} of the {mask.size} vectors are zero padding, of which HTP makes unit vectors",
            Severity.WARNING,
            {"vectors": float(count), "of": float(mask.size)},
            "multiply the result by 0 for padding and 1 elsewhere, as `dovetail fit` and `dovetail repair` do",
        )


WORKAROUND = Workaround("Q554", passes=(mask_zero_vectors,))
