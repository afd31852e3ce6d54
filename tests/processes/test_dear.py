"""Training in two halves, a reduce-scatter and an all-gather: what could go wrong only there.

All else is the same for every policy, and is tried with others.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import bytelane
from bytelane.runtime.torch import session_of
from bytelane.trace.recording import replay
from cases.arms import Ddp, Ours
from cases.compare import differences, digest
from cases.registry import CASES
from cases.trial import train as run_case
from ranks import Pool
from training import make, train, weights

SMALL_GROUPS: dict[str, Any] = {"policy": "dear", "fusion": "512B"}
# Dtypes; used flags and stand-ins; rounds; whoever wants all gradients; plans begun anew.
TRIED = (
    ("float64", ""),
    ("float16", ""),
    ("bfloat16", ""),
    ("several dtypes in one model", ""),
    ("parameters that are not used", "another one each step and rank"),
    ("parameters that are not used, with accumulation", "every pass is summed"),
    ("gradient accumulation", ""),
    ("gradient accumulation with no_sync", ""),
    ("clipping by global norm", ""),
    ("GradScaler", ""),
    ("two optimizers for one model", ""),
    ("a model with one parameter", ""),
    ("a parameter without elements", ""),
    ("unfreezing later", ""),
    ("uneven inputs", ""),
    ("two prepared models in one loss", ""),
)


def beside_ddp(rank: int, title: str, way: str) -> tuple[list[str], str]:
    world = dist.get_world_size()
    rounding = getattr(torch, CASES[title].rounding) if world > 2 else None
    ours = run_case(title, way, Ours(rank, world, knobs=SMALL_GROUPS))
    return differences(ours, run_case(title, way, Ddp(rank, world)), rounding), digest(ours)


@pytest.mark.parametrize("ranks", ["two_ranks", "four_ranks"])
@pytest.mark.parametrize(("title", "way"), TRIED)
def test_it_trains_as_ddp_does(
    request: pytest.FixtureRequest, title: str, way: str, ranks: str
) -> None:
    pool: Pool = request.getfixturevalue(ranks)
    answers = pool.run(beside_ddp, title=title, way=way)
    assert [unlike for unlike, _ in answers] == [[]] * pool.world
    assert len({everything for _, everything in answers}) == 1


def recorded(rank: int, path: str) -> tuple[list[str], list[str]]:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, trace=path, policy="dear", fusion="4KiB")
    train(net, opt, rank, steps=6)
    weights(net)
    spans = session_of(net).profiler.trace("here").spans
    last = [s.name for s in spans if s.kind == "transfer" and s.iteration == 5]
    plan, names = session_of(net).plan, session_of(net).parameters.names
    return last, [plan.describe(number, names) for number in range(2 * len(plan.operations))]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, two_ranks: Pool) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("recording")
    return folder, two_ranks.run(recorded, path=str(folder / "rank{rank}.jsonl"))


@pytest.mark.parametrize("rank", range(2))
def test_a_run_can_be_stepped_through_again(recording: tuple[Path, list[Any]], rank: int) -> None:
    rounds = list(replay(recording[0] / f"rank{rank}.jsonl"))
    assert [found.plan.plan.policy for found in rounds] == ["buckets"] * 3 + ["dear"] * 3
    assert not any(found.difference for found in rounds)
    plan = rounds[-1].plan.plan
    count = len(plan.operations)
    gathered = [count + number for number in plan.stages[1].order or ()]
    assert list(rounds[-1].line.launched) == [*range(count), *gathered]


def test_the_trace_shows_both_halves_of_every_operation(
    recording: tuple[Path, list[Any]],
) -> None:
    for seen, all_names in recording[1]:
        assert sorted(seen) == sorted(all_names)
        assert {name.split(" ")[0] for name in seen} == {"reduce-scatter", "all-gather"}
