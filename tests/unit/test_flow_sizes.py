"""Flow sizes and Poisson arrivals of background traffic."""

import itertools
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Sizes, load_sizes, poisson_arrivals
from bytelane.cluster.sizes import WEB_SEARCH
from bytelane.errors import InputError

distributions = st.lists(
    st.tuples(st.integers(0, 10**8), st.integers(1, 1000)), min_size=2, max_size=8
).map(
    lambda points: Sizes(
        tuple(sorted(float(size) for size, _ in points)),
        (
            0.0,
            *(
                sum(w for _, w in points[1 : i + 1]) / sum(w for _, w in points[1:])
                for i in range(1, len(points))
            ),
        ),
    )
)


def test_the_mean_of_web_search() -> None:
    assert WEB_SEARCH.mean_bytes == pytest.approx(1_711_250)


@pytest.mark.parametrize(
    ("share", "size"),
    [(0, 1), (0.15, 10_000), (0.175, 15_000), (0.53, 80_000), (0.97, 10**7), (1, 3 * 10**7)],
)
def test_between_points_are_straight_lines(share: float, size: int) -> None:
    assert WEB_SEARCH.quantile(share) == size


@given(distributions, st.floats(0, 1), st.floats(0, 1))
def test_larger_shares_have_larger_sizes(sizes: Sizes, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 1 <= sizes.quantile(low) <= sizes.quantile(high) <= max(1, sizes.bytes[-1])


@given(distributions)
def test_the_mean_is_that_of_the_quantiles(sizes: Sizes) -> None:
    count = 4000
    drawn = sum(sizes.quantile((i + 0.5) / count) for i in range(count)) / count
    assert drawn == pytest.approx(sizes.mean_bytes, rel=0.01, abs=1 + sizes.bytes[-1] / count)


def test_sizes_are_read_with_and_without_names(tmp_path: Path) -> None:
    file = tmp_path / "sizes.csv"
    file.write_text("0,0\n1000,0.5\n2e6,1\n")
    plain = load_sizes(file)
    file.write_text("bytes,cumulative\n0,0\n1000,0.5\n\n2e6,1\n")
    assert load_sizes(file) == plain == Sizes((0, 1000, 2e6), (0, 0.5, 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "two or more points"),
        ("1,1\n", "two or more points"),
        ("0,0\n10,0.9\n", "must end at 1"),
        ("0,-0.1\n10,1\n", "begin at 0 or more"),
        ("10,0\n0,1\n", "bytes must be finite and not fall"),
        ("0,0.5\n10,0.2\n20,1\n", "cumulative must be finite and not fall"),
        ("-5,0\n10,1\n", "-5 bytes"),
        ("nan,0\n10,1\n", "finite"),
        ("0,0\nten,1\n", "line 2 is not bytes and a probability"),
        ("a,b\n0,0\nten,1\n", "line 3 is not bytes and a probability"),
        ("0,0,0\n", "line 1 is not bytes and a probability"),
    ],
)
def test_wrong_sizes_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "sizes.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        load_sizes(file)


@given(st.integers(), st.integers(1, 8))
def test_flows_are_drawn_from_the_generator_that_is_passed_in(seed: int, hosts: int) -> None:
    generator, same = Random(seed), Random(seed)
    flows = list(itertools.islice(poisson_arrivals(generator, 50, WEB_SEARCH, range(hosts)), 20))
    again = poisson_arrivals(same, 50, WEB_SEARCH, range(hosts))
    assert flows == list(itertools.islice(again, 20))
    assert generator.getstate() == same.getstate() != Random(seed).getstate()
    assert {flow.destination for flow in flows} <= set(range(hosts))
