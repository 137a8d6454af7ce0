"""Text for a terminal."""

from __future__ import annotations

import pytest

from dovetail.printable import elapsed_text, one_line, printable, shorten_words, shortened, size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (434, "434 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1234, "1.2 kB"),
        (9949, "9.9 kB"),
        (9950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (1_234_567, "1.2 MB"),
        (87_654_321, "88 MB"),
        (5_000_000_000, "5.0 GB"),
        (12_345_678_901_234, "12 TB"),
        (10**16, "10000 TB"),
    ],
)
def test_sizes_have_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (75.9, "1:15"), (3600, "1:00:00"), (36_061, "10:01:01")])
def test_elapsed_times(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scores", "scores"),
        ("größe/层.1", "größe/层.1"),
        ("\x1b[31mRED\x07", "\\x1b[31mRED\\x07"),
        ("a\rb\tc\x00", "a\\rb\\tc\\x00"),
        ("right\u202eleft", "right\\u202eleft"),  # reverses what follows
        ("lone\ud800", "lone\\ud800"),  # cannot be encoded
        ("\x9b2J", "\\x9b2J"),  # an escape sequence in one character
    ],
)
def test_what_a_terminal_would_interpret_is_escaped(name: str, text: str) -> None:
    assert printable(name) == text
    assert printable(name).encode()


def test_a_name_is_one_line_and_a_message_may_have_several() -> None:
    assert one_line("a\nb") == "a\\nb"
    assert printable("a\nb") == "a\nb"


def test_the_middle_of_a_long_name_is_left_out() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 10) == "abc...hijk"
    assert shorten_words(f"'{'x' * 50}': 3 dB, 'y'", 11) == "'xxx...xx': 3 dB, 'y'"
