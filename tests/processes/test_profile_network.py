"""Profiling a network: real all-reduces between real processes, and what is made of them."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch.distributed as dist

from bytelane.api import make_cluster
from bytelane.cli.profile_network import profile_network as command
from bytelane.cli.profile_network import simulate_options, summary
from bytelane.cluster import Link
from bytelane.errors import InputError, TrainingError
from bytelane.measure import Sample
from bytelane.measure.loopback import profile_loopback
from bytelane.measure.network import (
    FEW_SIZES,
    IN_FLIGHT,
    LEAST_ROUNDS,
    MOST_MESSAGES,
    MOST_ROUNDS,
    SIZES,
    NetworkProfile,
    measure_link,
    profile_network,
    take_samples,
)
from ranks import Pool

FOUND = NetworkProfile(
    workers=4,
    link=Link(31.25e6, 310e-6, 0.0951, 0.004),
    samples=tuple(Sample(size, n, 4, size / 25e6) for size in (2**16, 2**20) for n in (1, 2)),
    errors=(0.02, -0.08, 0.05),
)


def profiled(rank: int, budget_s: float) -> bytes:
    group = dist.group.WORLD
    assert group is not None
    return msgspec.json.encode(profile_network(group, budget_s))


def measured(rank: int) -> Link:
    group = dist.group.WORLD
    assert group is not None

    def send(group: dist.ProcessGroup, size: int, messages: int, in_flight: int) -> float:
        return 0.001 * messages  # however large: nothing fits that

    return measure_link(group, send=send)[0]


def test_a_moment_that_is_too_noisy_for_a_fit_does_not_end_training(two_ranks: Pool) -> None:
    assert two_ranks.run(measured) == [Link(FEW_SIZES[-1] / 0.001)] * 2


def test_all_ranks_find_the_same(two_ranks: Pool) -> None:
    first, second = two_ranks.run(profiled, budget_s=0.2)
    assert first == second
    found = msgspec.json.decode(first, type=NetworkProfile)
    assert found.workers == 2
    assert found.link.rate > 0
    cells = {(sample.size, sample.in_flight) for sample in found.samples}
    assert cells == set(itertools.product(SIZES, IN_FLIGHT))
    assert all(sample.seconds > 0 for sample in found.samples)
    assert all(sample.uncertainty > 0 for sample in found.samples)
    assert len(found.errors) == len(SIZES) // 2 * len(IN_FLIGHT)


def rounds(rank: int, slow_s: float, vary: float) -> int:
    """Count the rows of messages if they take given times, shorter ones on one of the ranks."""
    from unittest.mock import Mock

    group = dist.group.WORLD
    assert group is not None
    own_s = slow_s if rank == 1 else slow_s / 10
    times = itertools.cycle([own_s, own_s * (1 - vary), own_s * (1 + vary)])
    send = Mock(side_effect=times)
    (sample,) = take_samples(group, [4096], [2], budget_s=8.0, send=send)
    assert sample[:3] == (4096, 2, MOST_MESSAGES)
    assert sample.seconds == pytest.approx(slow_s / MOST_MESSAGES, rel=vary)
    return send.call_count


@pytest.mark.parametrize(
    ("slow_s", "vary", "count"),
    [
        pytest.param(1.0, 0.1, 9, id="until time is up"),
        pytest.param(100.0, 0.1, LEAST_ROUNDS, id="some rounds whatever they take"),
        pytest.param(1e-3, 0.1, 67, id="until it is sure"),
        pytest.param(1e-3, 0.0, LEAST_ROUNDS, id="no more if it is sure at once"),
        pytest.param(1e-3, 0.9, MOST_ROUNDS, id="not for ever"),
    ],
)
def test_the_slowest_rank_counts_and_all_stop_together(
    two_ranks: Pool, slow_s: float, vary: float, count: int
) -> None:
    assert two_ranks.run(rounds, slow_s=slow_s, vary=vary) == [count, count]


def test_a_rank_that_fails_is_named_by_its_last_words() -> None:
    with pytest.raises(TrainingError, match=r"a rank failed: .*0.5 bytes per second cannot"):
        profile_loopback(2, 0.5, 1.0)


# --- the command --------------------------------------------------------------------------------


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_local_ranks_over_a_slowed_down_loopback_leave_nothing_behind(tmp_path: Path) -> None:
    arguments = ["profile-network", "--workers", "2", "--bandwidth", "2Gbit", "--seconds", "0.2"]
    done = run("-m", "bytelane", *arguments, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "message  1 in flight" in done.stdout.replace("     ", " ").replace("   ", " ")
    assert "now: bytelane simulate JOB --workers 2 --bandwidth " in done.stdout


def test_inside_torchrun_the_first_rank_prints_one_json() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run(*torchrun, "-m", "bytelane", "profile-network", "--seconds", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["workers"] == 2
    assert found["held_out_error_median_percent"] <= found["held_out_error_worst_percent"]


@pytest.mark.parametrize(
    ("settings", "environment", "complaint"),
    [
        ({}, {}, "a network needs two ends; start this on every worker, e.g.: torchrun"),
        ({"workers": 1}, {}, "1 workers cannot be measured on one machine"),
        ({"workers": 2, "bandwidth": "2GB"}, {}, "rates are in bits per second"),
        ({"bandwidth": "2Gbit"}, {}, "give --workers, too"),
        ({"workers": 2}, {"RANK": "0", "WORLD_SIZE": "2"}, "leave --workers out"),
        ({}, {"RANK": "0", "WORLD_SIZE": "1"}, "one worker has no network"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    environment: dict[str, str],
    complaint: str,
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=complaint):
        command(**settings)


@pytest.mark.parametrize(
    "link", [FOUND.link, Link(1e9), Link(12.5, 1.5, 2e-9), Link(1.25e9, 20e-6, 50e-6, 1e-4)]
)
def test_the_options_describe_the_same_link(link: Link) -> None:
    words = simulate_options(4, link).split()
    options = {name.strip("-"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert options.pop("workers") == "4"
    again = make_cluster(workers=4, **options).link
    for field, value in msgspec.structs.asdict(link).items():
        expected = value if value is None else pytest.approx(value, rel=1e-3)
        assert getattr(again, field) == expected


def test_the_summary_has_units_in_its_keys() -> None:
    found = summary(FOUND)
    assert found["bandwidth_bit_per_s"] == 250e6
    assert found["floor_ms"] == 4
    assert found["held_out_error_worst_percent"] == pytest.approx(8)
    # At 25 MB/s a tensor's bytes; 1.5 of them on the wire, of 31.25.
    assert found["samples"][0]["efficiency_percent"] == pytest.approx(100 * 1.5 * 25 / 31.25)
