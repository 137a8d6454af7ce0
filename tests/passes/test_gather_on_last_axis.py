from __future__ import annotations

import numpy as np

from dovetail.passes.gather_on_last_axis import gather_on_last_axis
from tests.equality import changed_by, model_from, ops

ROWS = np.array([0, 0, 2, 1, 2])


def test_rows_are_gathered_along_the_last_axis_and_other_consumers_are_not_changed() -> None:
    text = """g (float[1,2,3,4] x) => (float[1,2,5,4] y, float[1,2,3,4] z)
        { a = Neg(x) g = Gather<axis=-2>(a, rows) y = Neg(g) z = Exp(a) }"""
    after, record = changed_by(gather_on_last_axis, model_from(text, rows=ROWS))
    assert sorted(ops(after)) == ["Exp", "Gather", "Neg", "Neg", "Transpose", "Transpose"]
    assert [site.where for site in record.changed] == ["g"]


def test_the_last_axis_and_other_indices_are_not_changed() -> None:
    text = """g (float[1,2,3,4] x) => (float[1,2,3,5] y, float[1,2,4] z)
        { a = Neg(x) y = Gather<axis=3>(a, rows) z = Gather<axis=2>(a, one) }"""
    after, record = changed_by(gather_on_last_axis, model_from(text, rows=ROWS, one=np.array(1)))
    assert sorted(ops(after)) == ["Gather", "Gather", "Neg"]
    assert not record.changed
    assert len(record.declined) == 1
