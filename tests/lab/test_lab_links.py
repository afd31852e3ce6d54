"""What ip and tc are told about hosts, rates and bands."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.errors import LabError
from bytelane.lab.links import (
    MOST_HOSTS,
    PACKET_BYTES,
    TOS,
    TOS_MASK,
    address,
    shape_host,
    shape_port,
    wire_host,
    wire_switch,
)
from bytelane.lab.tools import run_batch
from bytelane.units import parse_rate
from labs import need

rates = st.floats(parse_rate("500kbit"), parse_rate("100Gbit"))
hosts = st.integers(2, MOST_HOSTS)


def number(line: str, name: str) -> int:
    found = re.search(rf"\b{name} (\d+)", line)
    assert found, line
    return int(found[1])


@given(hosts)
def test_every_host_has_a_port_and_an_address_of_its_own(count: int) -> None:
    switch = wire_switch([f"/ns/{host}" for host in range(count)])
    macs = [found[1] for line in switch if (found := re.search(r"address (\S+)", line))]
    own = {line for host in range(count) for line in wire_host(host, count) if "/24" in line}
    assert len(set(macs)) == len(own) == count
    assert (
        sum(line.endswith(f"netns /ns/{host}") for host in range(count) for line in switch) == count
    )


@given(hosts, st.data())
def test_every_host_knows_all_others_by_their_port(count: int, data: st.DataObject) -> None:
    host = data.draw(st.integers(0, count - 1))
    switch = wire_switch([f"/ns/{other}" for other in range(count)])
    known = dict(
        re.fullmatch(r"neigh add (\S+) lladdr (\S+) dev lane0 nud permanent", line).groups()  # type: ignore[union-attr]
        for line in wire_host(host, count)
        if line.startswith("neigh")
    )
    assert set(known) == {address(other) for other in range(count)} - {address(host)}
    for other in range(count):
        if other != host:
            line = next(line for line in switch if f"add port{other} " in line)
            assert known[address(other)] in line


@given(rates, st.sampled_from([None, "pfifo_fast", "htb"]), st.sampled_from(["add", "change"]))
def test_both_ends_of_a_link_have_the_rate(rate: float, priority: Any, verb: Any) -> None:
    host, port = shape_host(verb, rate, priority), shape_port(verb, 3, rate, priority)
    limit = next(line for line in port if "htb rate" in line or "tbf" in line)
    assert number(host[0], "rate") == number(limit, "rate") == round(rate * 8)
    assert all("dev port3 " in line for line in port)
    assert all("dev lane0 " in line for line in host)


@given(rates)
def test_a_bucket_holds_at_least_one_large_packet_and_a_queue_several(rate: float) -> None:
    (line,) = shape_host("add", rate, None)
    assert number(line, "burst") > number(line, "mtu") == PACKET_BYTES > 65536
    assert number(line, "limit") > 4 * PACKET_BYTES


@given(rates)
def test_a_link_that_was_idle_is_at_most_a_fifth_too_fast(rate: float) -> None:
    (line,) = shape_host("add", rate, None)
    assert number(line, "rate") < number(line, "peakrate") <= 1.2 * number(line, "rate") + 1


@given(rates)
def test_no_band_of_the_switch_is_limited_more_than_the_link(rate: float) -> None:
    bands = [line for line in shape_port("add", 0, rate, "htb") if "ceil" in line]
    assert [number(line, "ceil") for line in bands] == [round(rate * 8)] * 3
    assert [number(line, "prio") for line in bands] == [0, 1, 2]
    assert sum(number(line, "rate") for line in bands) < 0.05 * rate * 8


def bands_by_linux() -> dict[int, str]:
    """include/net/route.h and sch_generic.c: type of service, its priority, its band."""
    by_priority = {0: "normal", 2: "low", 6: "high", 4: "normal"}
    priorities = [0, 0, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 4, 4, 4, 4]
    return {tos: by_priority[priorities[(tos & 0x1E) >> 1]] for tos in range(256)}


@given(st.integers(0, 255))
def test_the_switch_tells_bands_apart_as_linux_does(tos: int) -> None:
    filters = [line for line in shape_port("add", 0, 1e8, "htb") if line.startswith("filter")]
    matching = {
        band
        for line in filters
        for value, mask, band in re.findall(r"tos (0x\w+) (0x\w+) flowid 1:1(\d)", line)
        if tos & int(mask, 16) == int(value, 16)
    }
    names = list(TOS)
    chosen = names[int(matching.pop())] if matching else "normal"
    assert not matching
    assert chosen == bands_by_linux()[tos]


def test_our_own_marks_are_in_their_bands() -> None:
    assert {name: bands_by_linux()[tos] for name, tos in TOS.items()} == {n: n for n in TOS}
    assert len({tos & TOS_MASK for tos in TOS.values()}) == 3


def test_a_change_adds_no_filter_and_no_root() -> None:
    for line in shape_port("change", 0, 1e8, "htb") + shape_host("change", 1e8, "pfifo_fast"):
        assert line.split()[1] == "change"
        assert not line.startswith("filter")


def test_a_line_that_a_tool_refuses_is_named() -> None:
    need("namespace")  # where there is an ip command
    with pytest.raises(LabError, match=r'^ip nonsense: Object "nonsense" is unknown'):
        run_batch("ip", ["link show lo", "nonsense", "link show lo"])
