"""The ``--shape`` line for a model with dynamic inputs."""

from __future__ import annotations

import pytest

from dovetail.errors import InputError
from dovetail.model.suggest_shapes import require_static, shape_line
from tests.equality import model_from


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        ("float[batch,3,h,w] x", "--shape x=1,3,224,224"),
        ("float[4,3,h,h] x, float[batch,n] z", "--shape x=4,3,224,224 --shape z=1,224"),
        ("float[batch,8] x, float[batch,batch] z", "--shape x=1,8 --shape z=1,1"),
        ("float[1,8] x, float[n] z", "--shape z=1"),
    ],
)
def test_line(inputs: str, line: str) -> None:
    assert shape_line(model_from(f"g ({inputs}) => (float[a,b] y) {{ y = Neg(x) }}")) == line


def test_size_that_the_graph_allows() -> None:
    text = "g (float[batch,3,h,w] x) => (float[a,b] y) <int64[2] s = {1, 3072}> { a = Neg(x) y = Reshape(a, s) }"
    assert shape_line(model_from(text)) == "--shape x=1,3,32,32"


def test_no_size_fits() -> None:
    text = "g (float[batch,3,h,w] x) => (float[a,b] y) <int64[2] s = {1, 7}> { a = Neg(x) y = Reshape(a, s) }"
    assert shape_line(model_from(text)) == "--shape x=1,3,224,224"


def test_refusal_has_the_line() -> None:
    model = model_from("g (float[batch,3,h,32] x) => (float[a,b,c,d] y) { y = Neg(x) }")
    with pytest.raises(InputError, match=r"'x' has no static shape \(batch,3,h,32\); set it, .* --shape x=1,3,224,32$"):
        require_static(model)
