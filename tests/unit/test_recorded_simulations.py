"""The simulator's results are those that were recorded, to the last bit."""

import pytest

from recorded_simulations import COUNT, found, recorded

# All 2000: python tests/support/recorded_simulations.py
EVERY = 8


def test_as_many_as_promised_are_recorded() -> None:
    assert len(recorded()) == COUNT
    assert recorded().count("refused") < COUNT / 20


@pytest.mark.parametrize("number", range(0, COUNT, EVERY * 10))
def test_results_are_the_same_to_the_last_bit(number: int) -> None:
    numbers = range(number, number + EVERY * 10, EVERY)
    assert [found(k) for k in numbers] == [recorded()[k] for k in numbers]
