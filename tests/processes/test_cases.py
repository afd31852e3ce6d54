"""Every case of the table, on two processes: the same bits as DDP, or a sentence."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cases import CASES, variants
from cases.arms import Arm, Ours
from cases.compare import differences, tolerance_of
from cases.trial import complaints, refusal, report, train
from random_models import how_to_repeat, judge
from ranks import Pool, RankFailed

NOT_TRAINED = ("refused", "servers")
REFUSED = [(title, way) for title, way in variants(2) if CASES[title].outcome in NOT_TRAINED]
TRAINED = [found for found in variants(2) if found not in REFUSED]


@pytest.mark.parametrize(("title", "way"), TRAINED)
def test_two_ranks_train_as_under_ddp(two_ranks: Pool, title: str, way: str) -> None:
    reports = two_ranks.run(report, title=title, way=way, key=f"{title}, {way}")
    assert complaints(CASES[title], reports) == []


@pytest.mark.parametrize(("title", "way"), REFUSED)
def test_refused_before_training_starts(two_ranks: Pool, title: str, way: str) -> None:
    for sentence, before_training in two_ranks.run(refusal, title=title, way=way):
        assert CASES[title].says in sentence
        assert before_training


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize(("title", "way"), variants(1))
def test_nothing_is_done_alone(title: str, way: str, world: int) -> None:
    if world == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with redirect_stdout(io.StringIO()) as said:
            ours = train(title, way, Ours(0, 1))
    finally:
        if world == 1:
            dist.destroy_process_group()
    assert differences(ours, train(title, way, Arm(0, 1))) == []
    assert CASES[title].says in said.getvalue()


# --- at random ------------------------------------------------------------------------------------


# The last four were found by the soak: a round that a rank looks into before it is complete.
@pytest.mark.parametrize("seed", [*range(30), 122, 184, 306, 308])
def test_what_a_seed_draws_trains_as_under_ddp(two_ranks: Pool, seed: int) -> None:
    try:
        found = two_ranks.run(judge, seed=seed)
    except RankFailed as error:
        pytest.fail(f"{error}\n{how_to_repeat(seed, 2)}")
    assert found == [[], []], how_to_repeat(seed, 2)


# --- the comparison can fail ----------------------------------------------------------------------

Change = Callable[[torch.Tensor, int, int], None]  # what is to be summed, its number, the rank


sent_before: list[torch.Tensor] = []


def drop(part: torch.Tensor, number: int, rank: int) -> None:
    if number == 40 and rank == 1:
        part[0] = 0


def swap(part: torch.Tensor, number: int, rank: int) -> None:
    half = part.numel() // 2
    if number > 40:
        part[: 2 * half] = part[: 2 * half].roll(half)


def repeat(part: torch.Tensor, number: int, rank: int) -> None:
    """Send what was sent before."""
    if number == 60 and rank == 0:
        part.copy_(next(old for old in sent_before if old.numel() == part.numel()))
    sent_before.append(part.clone())


MUTATIONS: dict[str, Change] = {
    "none": lambda *_: None,
    "drop": drop,
    "swap": swap,
    "repeat": repeat,
}


@contextmanager
def mutated(mutation: str, rank: int) -> Iterator[None]:
    """Change what we send; DDP does not go through Python."""
    honest: Any = dist.ProcessGroup.allreduce_coalesced
    sent = 0

    def allreduce_coalesced(group: Any, tensors: Any, *rest: Any) -> Any:
        nonlocal sent
        sent += 1
        MUTATIONS[mutation](tensors[0], sent, rank)
        return honest(group, tensors, *rest)

    dist.ProcessGroup.allreduce_coalesced = allreduce_coalesced  # type: ignore[method-assign]
    try:
        yield
    finally:
        dist.ProcessGroup.allreduce_coalesced = honest  # type: ignore[method-assign]


def report_of_a_mutant(rank: int, mutation: str) -> Any:
    with mutated(mutation, rank):
        return report(rank, "the usual loop", "", f"mutation: {mutation}")


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_seen(two_ranks: Pool, mutation: str) -> None:
    reports = two_ranks.run(report_of_a_mutant, mutation=mutation)
    found = complaints(CASES["the usual loop"], reports)
    assert any("unlike DDP" in text for text in found) == (mutation != "none")


def test_differences_are_seen_up_to_rounding() -> None:
    ones = torch.ones(3)
    nearly = torch.tensor([1.0, 1.0, 1.0 + 2e-7])
    assert differences({"a": ones}, {"a": ones.clone()}) == []
    assert differences({"a": nearly}, {"a": ones}) == ["a is off by 2.4e-07 in 1 of 3 elements"]
    assert differences({"a": nearly}, {"a": ones}, torch.float32) == []
    assert differences({"a": ones + 2e-5}, {"a": ones}, torch.float32) != []
    assert differences({"a": None}, {"a": ones}) != []
    assert differences({"a": ones}, {"b": ones}) != []
    assert differences({"a": ones}, {"a": ones.double()}) != []
    assert differences({"a": torch.tensor(float("nan"))}, {"a": torch.tensor(1.0)}) != []
    assert tolerance_of(torch.float32, torch.float32) < 1e-5
