"""Masks that mask nothing and guards without effect are removed; all others stay, with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.passes.additive_attention_mask import additive_attention_mask
from dovetail.passes.remove_nan_guard import remove_nan_guard
from dovetail.passes.remove_zero_masks import remove_zero_masks
from tests.passes.attention_cases import INPUTS, apply, ops, parse

SCORES = "kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, kt)\n"
END = "p = Softmax <axis = -1> (z) y = MatMul (p, v)"
GUARDED = "p = Softmax <axis = -1> (z) n = IsNaN (p) g = Where (n, zero, p) y = MatMul (g, v)"
ZERO = np.float32(0)
INF = np.float32(-np.inf)
TRIANGLE = np.tril(np.ones((5, 7), np.bool_), 2)
ONE_MASKED_ROW = np.where(np.arange(5)[:, None] == 3, False, TRIANGLE)


@pytest.mark.parametrize("zeros", [np.zeros((5, 7)), np.zeros(()), np.zeros((1, 1, 1, 7)), np.full((5, 7), -0.0)])
def test_added_zeros_are_removed(zeros: np.ndarray) -> None:
    model = parse(SCORES + "z = Add (s, mask)" + END, mask=zeros)
    assert len(apply(model, remove_zero_masks).changed) == 1
    assert ops(model)["Add"] == 0


@pytest.mark.parametrize(("branches", "condition"), [("s, low", True), ("low, s", False)])
def test_conditions_that_keep_everything_are_removed(branches: str, condition: bool) -> None:
    text = SCORES + f"z = Where (mask, {branches})" + END
    model = parse(text, mask=np.full((5, 7), condition), low=INF)
    assert len(apply(model, remove_zero_masks).changed) == 1
    assert ops(model)["Where"] == 0


def test_several_zero_masks_are_removed_and_the_real_one_stays() -> None:
    text = SCORES + "a = Add (s, none) b = Add (a, real) z = Add (b, none)" + END
    model = parse(text, none=np.zeros((5, 7)), real=np.where(TRIANGLE, 0.0, -100.0))
    assert len(apply(model, remove_zero_masks).changed) == 2
    assert ops(model)["Add"] == 1


def test_real_masks_stay() -> None:
    for text, mask in (("z = Add (s, mask)", np.where(TRIANGLE, 0.0, -100.0)), ("z = Where (mask, s, low)", TRIANGLE)):
        constants = {"mask": mask, **({"low": INF} if "low" in text else {})}
        record = apply(parse(SCORES + text + END, **constants), remove_zero_masks)
        assert (record.changed, record.declined) == ((), ())


def test_zero_mask_with_a_second_consumer_of_the_scores() -> None:
    text = SCORES + "z = Add (s, mask)" + END
    outputs = "float[1,2,5,4] y, float[1,2,5,7] s, float[1,2,5,7] z"
    model = parse(text, outputs=outputs, mask=np.zeros((5, 7)))
    assert len(apply(model, remove_zero_masks).changed) == 1


def test_zero_mask_that_broadcasts_is_declined() -> None:
    text = SCORES + "z = Add (s, mask)" + END
    model = parse(text, outputs="float[3,2,5,4] y", mask=np.zeros((3, 1, 5, 7)))
    record = apply(model, remove_zero_masks)
    assert record.changed == ()
    assert "another shape" in record.declined[0].what


REMOVABLE = {
    "no mask": ("z = Identity (s)", {}),
    "finite mask": ("z = Add (s, mask)", {"mask": np.full((5, 7), -3.4e38)}),
    "no row masked": ("z = Add (s, mask)", {"mask": np.where(TRIANGLE, 0.0, -np.inf)}),
    "condition, no row masked": ("z = Where (mask, s, low)", {"mask": TRIANGLE, "low": INF}),
    "finite fill": ("z = Where (mask, s, low)", {"mask": ONE_MASKED_ROW, "low": np.float32(-1e9)}),
    "selected from finite values": ("m = Where (c, zero, low) z = Add (s, m)", {"low": np.float32(-3.4e38)}),
    "finite fills one after the other": (
        "a = Where (mask, s, low) z = Where (mask, a, low)",
        {"mask": ONE_MASKED_ROW, "low": np.float32(-3e38)},
    ),
    "a finite mask, scaled down": (
        "a = Add (s, mask) z = Div (a, four)",
        {"mask": np.full((5, 7), -3.4e38), "four": np.float32(4)},
    ),
    "one infinite, one finite": (
        "a = Add (s, mask) z = Add (a, bias)",
        {"mask": np.where(TRIANGLE, 0.0, -np.inf), "bias": np.ones((5, 7))},
    ),
}


@pytest.mark.parametrize("case", REMOVABLE)
def test_guard_without_effect_is_removed(case: str) -> None:
    text, constants = REMOVABLE[case]
    inputs = f"{INPUTS}, bool[5,7] c" if "(c," in text else INPUTS
    model = parse(SCORES + text + GUARDED, inputs=inputs, zero=ZERO, **constants)
    (site,) = apply(model, remove_nan_guard).changed
    assert site.what == "NaN guard removed: no row of scores can be all -inf"
    assert ops(model)["IsNaN"] == 0


NEEDED = {
    "a whole row masked": ("z = Add (s, mask)", {"mask": np.where(ONE_MASKED_ROW, 0.0, -np.inf)}, "masks a whole row"),
    "condition, a whole row masked": (
        "z = Where (mask, s, low)",
        {"mask": ONE_MASKED_ROW, "low": INF},
        "masks a whole row",
    ),
    "mask from the inputs": ("z = Add (s, m)", {}, "depends on the inputs"),
    "condition from the inputs": ("z = Where (c, s, low)", {"low": INF}, "depends on the inputs"),
    "two infinite masks": (
        "a = Add (s, one) z = Add (a, two)",
        {"one": np.where(TRIANGLE, 0.0, -np.inf), "two": np.where(TRIANGLE[:, ::-1], 0.0, -np.inf)},
        "several masks",
    ),
    "fill of +inf": ("z = Where (mask, s, low)", {"mask": TRIANGLE, "low": np.float32(np.inf)}, "+inf"),
    "finite masks that overflow together": (
        "a = Add (s, mask) z = Add (a, mask)",
        {"mask": np.full((5, 7), -3e38)},
        "finite masks reach 6e+38 at Add",
    ),
    "a finite mask that a scale overflows": (
        "a = Add (s, mask) z = Mul (a, four)",
        {"mask": np.full((5, 7), -3e38), "four": np.float32(4)},
        "finite masks reach 1.2e+39 at Mul",
    ),
    "a finite mask that overflows in float16": (
        "a = Add (s, mask) h = Cast <to = 10> (a) z = Cast <to = 1> (h)",
        {"mask": np.full((5, 7), -1e9)},
        "finite masks reach 1e+09 at Cast",
    ),
    "an infinite mask and a negative scale": (
        "a = Add (s, mask) z = Mul (a, minus)",
        {"mask": np.where(TRIANGLE, 0.0, -np.inf), "minus": np.float32(-1)},
        "turns the -inf of a mask into NaN or +inf",
    ),
    "mask of +inf": ("z = Add (s, mask)", {"mask": np.where(TRIANGLE, 0.0, np.inf)}, "+inf"),
}


@pytest.mark.parametrize("case", NEEDED)
def test_needed_guard_stays(case: str) -> None:
    text, constants, reason = NEEDED[case]
    inputs = f"{INPUTS}, bool[5,7] c" if "(c," in text else f"{INPUTS}, float[5,7] m"
    model = parse(SCORES + text + GUARDED, inputs=inputs, zero=ZERO, **constants)
    record = apply(model, remove_nan_guard)
    assert record.changed == ()
    assert len(record.declined) == 1
    assert reason in record.declined[0].what
    assert ops(model)["IsNaN"] == 1


def test_guarded_probabilities_that_are_outputs_keep_their_names() -> None:
    model = parse(
        SCORES + "z = Identity (s)" + GUARDED,
        outputs="float[1,2,5,4] y, float[1,2,5,7] p, float[1,2,5,7] g",
        zero=ZERO,
    )
    assert len(apply(model, remove_nan_guard).changed) == 1


@pytest.mark.parametrize(("branches", "mask"), [("s, low", TRIANGLE), ("low, s", ~TRIANGLE)])
def test_condition_becomes_an_added_mask(branches: str, mask: np.ndarray) -> None:
    text = SCORES + f"z = Where (mask, {branches})" + END
    for low in (np.float32(-1e9), INF):
        model = parse(text, mask=mask, low=low)
        assert len(apply(model, additive_attention_mask).changed) == 1
        assert (ops(model)["Where"], ops(model)["Add"]) == (0, 1)


@pytest.mark.parametrize(
    ("mask", "low", "reason"),
    [
        (TRIANGLE, np.float32(-5), "too large"),
        (ONE_MASKED_ROW, np.float32(-1e9), "masks a whole row"),
        (None, np.float32(-1e9), "depends on the inputs"),
    ],
)
def test_condition_that_cannot_be_added_stays(mask: np.ndarray | None, low: np.float32, reason: str) -> None:
    constants = {"low": low} if mask is None else {"low": low, "mask": mask}
    inputs = f"{INPUTS}, bool[5,7] mask" if mask is None else INPUTS
    record = apply(
        parse(SCORES + "z = Where (mask, s, low)" + END, inputs=inputs, **constants), additive_attention_mask
    )
    assert record.changed == ()
    assert reason in record.declined[0].what


TWO = (
    SCORES
    + """z = Add (s, mask) p = Softmax <axis = -1> (z) n = IsNaN (p) g = Where (n, zero, p) y = MatMul (g, v)
    s2 = MatMul (y, kt) z2 = Add (s2, mask) p2 = Softmax <axis = -1> (z2) n2 = IsNaN (p2) g2 = Where (n2, zero, p2)
    w = MatMul (g2, v)"""
)
TWO_OUTPUTS = "float[1,2,5,4] y, float[1,2,5,4] w"


def test_mask_shared_by_two_attentions_is_checked_for_each() -> None:
    model = parse(TWO, outputs=TWO_OUTPUTS, mask=np.zeros((5, 7)), zero=ZERO)
    assert len(apply(model, remove_zero_masks).changed) == 2
    model = parse(TWO, outputs=TWO_OUTPUTS, mask=np.where(TRIANGLE, 0.0, -np.inf), zero=ZERO)
    assert len(apply(model, remove_nan_guard).changed) == 2
    assert ops(model)["Add"] == 2
    model = parse(TWO, outputs=TWO_OUTPUTS, mask=np.where(ONE_MASKED_ROW, 0.0, -np.inf), zero=ZERO)
    assert len(apply(model, remove_nan_guard).declined) == 2


def test_zero_mask_and_guard_are_removed_between_casts_and_transposes() -> None:
    text = """kh = Cast <to = 10> (k) kt = Transpose <perm = [0,1,3,2]> (kh) qh = Cast <to = 10> (q)
        sh = MatMul (qh, kt) s = Cast <to = 1> (sh) z = Add (s, mask) p = Softmax <axis = -1> (z)
        n = IsNaN (p) g = Where (n, zero, p) y = MatMul (g, v)"""
    model = parse(text, mask=np.zeros((5, 7)), zero=ZERO)
    apply(model, remove_zero_masks, remove_nan_guard)
    assert (ops(model)["Add"], ops(model)["Where"], ops(model)["Cast"]) == (0, 0, 3)


def test_second_consumer_of_the_unguarded_probabilities_is_kept() -> None:
    text = SCORES + "z = Add (s, mask)" + GUARDED + " u = Relu (p) w = Neg (g)"
    outputs = "float[1,2,5,4] y, float[1,2,5,7] u, float[1,2,5,7] w"
    model = parse(text, outputs=outputs, mask=np.where(TRIANGLE, 0.0, -np.inf), zero=ZERO)
    assert len(apply(model, remove_nan_guard).changed) == 1
