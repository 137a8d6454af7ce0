"""Delta debugging: the smallest failing part, in order, with a bounded number of calls; unfinished searches say so."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.trials.delta_debugging import smallest_failing

ELEMENTS = tuple(range(24))
CULPRITS = st.sets(st.sampled_from(ELEMENTS), min_size=1, max_size=6)
MANY = 10_000


class Predicate:
    """Fails if all culprits of one of several sets are there; counts its calls and checks its arguments."""

    def __init__(self, *culprits: set[int]) -> None:
        self.culprits, self.tried = culprits, list[tuple[int, ...]]()

    def __call__(self, part: tuple[int, ...]) -> bool:
        assert part
        assert list(part) == sorted(set(part))
        assert part not in self.tried
        self.tried.append(part)
        return any(culprits <= set(part) for culprits in self.culprits)


@given(CULPRITS)
def test_exactly_the_culprits_are_left(culprits: set[int]) -> None:
    fails = Predicate(culprits)
    reduction = smallest_failing(ELEMENTS, fails, max_calls=MANY)
    assert reduction.elements == tuple(sorted(culprits))
    assert reduction.is_minimal
    assert reduction.calls == len(fails.tried)


@given(st.lists(CULPRITS, min_size=1, max_size=3))
def test_one_of_several_causes_is_left_and_nothing_can_be_left_out(causes: list[set[int]]) -> None:
    fails = Predicate(*causes)
    reduction = smallest_failing(ELEMENTS, fails, max_calls=MANY)
    assert set(reduction.elements) in causes
    for element in reduction.elements:
        rest = set(reduction.elements) - {element}
        assert not any(cause <= rest for cause in causes)


@given(CULPRITS, st.integers(0, 30))
def test_the_number_of_calls_is_bounded_and_what_is_left_fails(culprits: set[int], max_calls: int) -> None:
    fails = Predicate(culprits)
    reduction = smallest_failing(ELEMENTS, fails, max_calls=max_calls)
    assert len(fails.tried) <= max_calls
    assert culprits <= set(reduction.elements)
    assert reduction.is_minimal <= (set(reduction.elements) == culprits)


@given(CULPRITS)
def test_a_good_guess_saves_calls_and_a_bad_one_costs_one(culprits: set[int]) -> None:
    plain = smallest_failing(ELEMENTS, Predicate(culprits), max_calls=MANY)
    bad = sorted(set(ELEMENTS) - {min(culprits)})
    guessed = smallest_failing(ELEMENTS, Predicate(culprits), max_calls=MANY, try_first=[bad, sorted(culprits)])
    assert guessed.elements == plain.elements
    # Two guesses, and each culprit alone and left out to show that the part is minimal.
    assert guessed.calls <= 2 + 4 * len(culprits)


def test_one_element_needs_no_call() -> None:
    reduction = smallest_failing(["only"], lambda part: False, max_calls=5)
    assert (reduction.elements, reduction.calls, reduction.is_minimal) == (("only",), 0, True)


def test_the_answer_is_always_the_same() -> None:
    calls = []
    for _ in range(2):
        fails = Predicate({3, 17}, {5}, {9, 10, 11})
        smallest_failing(ELEMENTS, fails, max_calls=MANY)
        calls.append(fails.tried)
    assert calls[0] == calls[1]


@given(st.lists(CULPRITS, min_size=1, max_size=3), st.integers(1, 40), st.sampled_from([2, 5]))
@settings(deadline=None)
def test_trying_several_at_once_changes_nothing(causes: list[set[int]], max_calls: int, at_once: int) -> None:
    def fails(part: tuple[int, ...]) -> bool:
        return any(culprits <= set(part) for culprits in causes)

    alone = smallest_failing(ELEMENTS, fails, max_calls=max_calls)
    assert smallest_failing(ELEMENTS, fails, max_calls=max_calls, at_once=at_once) == alone
