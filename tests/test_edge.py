"""An edge is written the same way in every document."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.document import convert, decode, encode
from dovetail.edge import Edge
from dovetail.errors import InputError


@dataclass(frozen=True)
class Row:
    """A record with an edge in it."""

    edge: Edge | None


@given(st.text(min_size=1), st.integers(min_value=0, max_value=999))
def test_parse_reverses_str(node: str, index: int) -> None:
    edge = Edge(node, index)
    assert Edge.parse(str(edge)) == edge
    assert Edge.parse(str(edge)).node == node


@pytest.mark.parametrize("text", ["", "node", "node:", ":1", "node:²", "node:-1", "node:1.0", "node: 1", "node:٣"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not an edge: expected node:index, as in conv:1"):
        Edge.parse(text)


def test_a_document_contains_it_as_text() -> None:
    row = Row(Edge("a::b:c", 2))
    assert encode(row) == b'{"edge":"a::b:c:2"}'
    assert decode(encode(row), Row) == row
    assert convert({"edge": None}, Row) == Row(None)


@pytest.mark.parametrize("wrong", ["node:²", {"node": "a", "index": 1}, 3])
def test_a_document_with_another_form_is_refused_with_its_place(wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"edge.* - at `\$.edge`"):
        convert({"edge": wrong}, Row)


def test_equality_order_and_pickling() -> None:
    edge = Edge("n", 10)
    assert {edge, Edge("n", 10)} == {edge}
    assert sorted([edge, Edge("n", 9), Edge("m", 11)]) == [Edge("m", 11), Edge("n", 9), edge]
    assert pickle.loads(pickle.dumps(edge)) == copy.deepcopy(edge) == edge
    assert edge != "n:10"
    assert repr(edge) == "Edge('n', 10)"
