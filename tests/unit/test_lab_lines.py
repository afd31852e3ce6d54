"""Output in any pieces becomes the same lines."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bytelane.lab.lines import LONGEST_BYTES, Lines

texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b" "])).map(b"".join)


def lines_of(*pieces: bytes) -> list[str]:
    lines = Lines()
    return [line for piece in pieces for line in lines.feed(piece)] + lines.end()


def test_newlines_returns_and_both_end_a_line() -> None:
    assert lines_of(b"one\ntwo\r\nthree\rfour\n\nfive") == [
        "one",
        "two",
        "three",
        "four",
        "",
        "five",
    ]


def test_a_line_is_told_as_soon_as_it_ends() -> None:
    lines = Lines()
    assert lines.feed(b"10 %\r20") == ["10 %"]
    assert lines.feed(b" %\n") == ["20 %"]
    assert lines.end() == []


@given(texts, st.lists(st.integers(0, 40)))
def test_how_it_is_cut_does_not_matter(text: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    assert lines_of(*pieces) == lines_of(text)


@given(texts)
def test_no_letter_is_lost(text: bytes) -> None:
    kept = "".join(lines_of(text))
    assert kept == text.decode().replace("\r", "").replace("\n", "")


def test_a_line_without_end_is_told_before_it_fills_the_memory() -> None:
    lines = Lines()
    assert lines.feed(b"x" * LONGEST_BYTES) == []
    assert [len(line) for line in lines.feed(b"x")] == [LONGEST_BYTES + 1]
