"""Quantities: what people write is what Bytelane reads, and nothing is guessed."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.errors import UnitError
from bytelane.units import (
    BITS_PER_SECOND,
    BYTES,
    PER_SECOND,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)

Parse = Callable[[str], float]
UNITS: dict[Parse, Mapping[str, int]] = {
    parse_bytes: BYTES,
    parse_rate: BITS_PER_SECOND,
    parse_seconds: PER_SECOND,
}
each_kind = pytest.mark.parametrize("parse", UNITS)
SPACE = st.sampled_from(["", " ", "  ", "\t"])
NEARLY_A_QUANTITY = st.from_regex(r"[+-]?[0-9.eE]{1,7}\s?[A-Za-z]{0,4}(/s)?", fullmatch=True)


def test_sizes_are_bytes() -> None:
    decimal = {"7B": 7, "7kB": 7 * 10**3, "7MB": 7 * 10**6, "7GB": 7 * 10**9}
    binary = {"7KiB": 7 * 2**10, "7MiB": 7 * 2**20, "7GiB": 7 * 2**30}
    other = {"0.5KiB": 512, ".25MiB": 2**18, "1e3 kB": 10**6, "7": 7, 7: 7}
    sizes = decimal | binary | other
    assert {text: parse_bytes(text) for text in sizes} == sizes


def test_rates_are_written_in_bits_and_read_as_bytes() -> None:
    rates = {"8bit": 1, "8kbit": 1e3, "8Mbit": 1e6, "8Gbit": 1e9, "2.5 Gbit/s": 312.5e6}
    assert {text: parse_rate(text) for text in rates} == rates


def test_times_are_seconds() -> None:
    # Equal, not close: 300us is the float nearest to 0.0003.
    times = {"3s": 3.0, "3ms": 3e-3, "300us": 3e-4, "3ns": 3e-9, "1.5 ms": 1.5e-3, "0": 0.0}
    assert {text: parse_seconds(text) for text in times} == times


@given(st.integers(0, 2**23), st.sampled_from(sorted(BYTES)), SPACE, SPACE, SPACE)
def test_spaces_mean_nothing(number: int, unit: str, a: str, b: str, c: str) -> None:
    assert parse_bytes(f"{a}{number}{b}{unit}{c}") == number * BYTES[unit]


@given(st.integers(0, 10**6), st.sampled_from(sorted(BITS_PER_SECOND)))
def test_a_whole_number_of_bits_per_second_is_exact(number: int, unit: str) -> None:
    assert Fraction(parse_rate(f"{number}{unit}")) * 8 == number * BITS_PER_SECOND[unit]


@given(st.decimals(0, 10**6, places=3), st.sampled_from(sorted(PER_SECOND)))
def test_a_decimal_time_is_off_by_rounding_only(number: Decimal, unit: str) -> None:
    exact = float(Fraction(number) / PER_SECOND[unit])
    assert parse_seconds(f"{number}{unit}") == pytest.approx(exact, rel=1e-15, abs=0)


@given(st.integers(0, 10**6), st.sampled_from(["MB", "GB"]))
def test_a_decimal_that_is_a_whole_number_of_bytes_is_read(millis: int, unit: str) -> None:
    text = f"{millis // 1000}.{millis % 1000:03}{unit}"
    assert parse_bytes(text) == millis * BYTES[unit] // 1000


def test_a_size_is_exact_however_long() -> None:
    assert parse_bytes("9007199254740993B") == 9007199254740993


@given(st.integers(1, 4096), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_quarters_of_binary_units_survive_the_round_trip(quarters: int, unit: str) -> None:
    size = quarters * BYTES[unit] // 4
    assert parse_bytes(format_bytes(size)) == size


@given(st.integers(1, 9999), st.integers(0, 9))
def test_four_digits_of_a_size_survive_the_round_trip(number: int, zeros: int) -> None:
    size = number * 10**zeros
    assert parse_bytes(format_bytes(size)) == size


@given(st.integers(0, 2**50))
def test_a_printed_size_is_off_by_less_than_a_thousandth(size: int) -> None:
    number, unit = format_bytes(size).split()
    assert float(number) * BYTES[unit] == pytest.approx(size, rel=1e-3)


@given(st.integers(1, 9999), st.sampled_from(["kbit", "Mbit", "Gbit"]))
def test_four_digits_of_a_rate_survive_the_round_trip(number: int, unit: str) -> None:
    rate = parse_rate(f"{number}{unit}")
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=1e-15, abs=0)


@given(st.integers(1, 9999), st.sampled_from(sorted(PER_SECOND)))
def test_four_digits_of_a_time_survive_the_round_trip(number: int, unit: str) -> None:
    seconds = parse_seconds(f"{number}{unit}")
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=1e-15, abs=0)


def test_the_printed_unit_is_chosen_for_the_reader() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 1024: "1 KiB", 13_835_736: "13.84 MB"}
    # P3's slices are 160 kB, though 156.25 KiB is exact too; a quarter of a MiB is not 262.1 kB.
    sizes |= {160_000: "160 kB", 8_000_000: "8 MB", 2**18: "256 KiB", 512_000: "500 KiB"}
    rates = {0: "0 bit/s", 1.25e9: "10 Gbit/s", 62.5e6: "500 Mbit/s"}
    times = {0: "0 s", 3e-4: "300 us", 0.45: "450 ms", 12: "12 s", 5e-9: "5 ns"}
    assert {size: format_bytes(size) for size in sizes} == sizes
    assert {rate: format_rate(rate) for rate in rates} == rates
    assert {seconds: format_seconds(seconds) for seconds in times} == times


@each_kind
@pytest.mark.parametrize("number", ["-1", "nan", "inf", "-inf", "1e999", "", "four", "1_0", "1 0"])
def test_only_finite_numbers_from_zero_up(parse: Parse, number: str) -> None:
    text = number + next(iter(UNITS[parse]))
    with pytest.raises(UnitError) as refusal:
        parse(text)
    assert repr(text) in str(refusal.value)


@each_kind
@given(text=st.text() | NEARLY_A_QUANTITY)
def test_any_text_is_read_or_refused(parse: Parse, text: str) -> None:
    with suppress(UnitError):
        assert parse(text) >= 0


@pytest.mark.parametrize(("parse", "text"), [(parse_rate, "10"), (parse_seconds, "300")])
def test_a_missing_unit_is_not_guessed(parse: Parse, text: str) -> None:
    with pytest.raises(UnitError, match=f"'{text}' has no unit; .* is written like"):
        parse(text)


def test_a_part_of_a_byte_is_refused() -> None:
    with pytest.raises(UnitError, match=r"'1\.5B' is not a whole number of bytes"):
        parse_bytes("1.5B")


@pytest.mark.parametrize("text", ["10GB", "10GiB", "10GB/s"])
def test_a_rate_in_bytes_is_told_that_rates_are_in_bits(text: str) -> None:
    with pytest.raises(UnitError, match="rates are in bits per second"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [(parse_bytes, "4mib", "MiB"), (parse_rate, "1gbit", "Gbit"), (parse_seconds, "5MS", "ms")],
)
def test_the_wrong_case_gets_a_hint(parse: Parse, text: str, meant: str) -> None:
    with pytest.raises(UnitError, match=rf"did you mean {meant}\?"):
        parse(text)


@each_kind
@pytest.mark.parametrize("unit", ["M", "min", "parsec"])
def test_an_unknown_unit_is_answered_with_the_known_ones(parse: Parse, unit: str) -> None:
    with pytest.raises(UnitError, match=f"'{unit}' is not one of {', '.join(UNITS[parse])}"):
        parse(f"4{unit}")
