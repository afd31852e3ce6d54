"""The ablation in which rank 0 decides: nothing early, the most urgent first, all alike."""

import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.bench import Conditions
from bytelane.bench.coordinator import (
    FRAME,
    Coordinator,
    _Follower,
    _Leader,
    preferring_what_is_needed_first,
)
from bytelane.bench.trainers import CoordinatedTrainer, our_groups
from bytelane.bench.workload import Emulated
from bytelane.core import Knobs, Plan
from bytelane.errors import PlanMismatch
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.torch.control import GlooControl
from bytelane.sim import make_planner
from ranks import Pool
from strategies import jobs

KNOBS = Knobs(partition_bytes=8, credit_bytes=16)
JOBS = jobs().filter(lambda job: bool(job.tensors))


class Talk:
    """One rank's side of it, without sockets."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.round = -1
        self.ready: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self.said: list[int] = []

    def tell(self, numbers: Iterable[int]) -> None:
        self.said += numbers


def by_need(job: Job) -> Plan:
    return preferring_what_is_needed_first(make_planner("units", KNOBS)).plan(job)


@given(JOBS)
def test_operations_are_numbered_by_who_is_needed_first(job: Job) -> None:
    planned, preferred = make_planner("units", KNOBS).plan(job), by_need(job)
    assert sorted(preferred.operations, key=repr) == sorted(planned.operations, key=repr)
    needed = [
        min(job.tensors[part.tensor].layers[0] for part in operation.parts)
        for operation in preferred.operations
    ]
    assert needed == sorted(needed)


@given(JOBS, st.integers(2, 4), st.randoms(use_true_random=False))
def test_the_most_urgent_of_what_is_ready_everywhere_starts(
    job: Job, world: int, random: Random
) -> None:
    plan, talk = by_need(job), Talk(world)
    leader = _Leader(talk, plan)  # type: ignore[arg-type]
    for round_number in range(2):
        leader.reset()
        talk.said.clear()
        ready = Counter[int]()
        waiting = [tensor for tensor in range(len(job.tensors)) for _ in range(world)]
        flying, started = list[int](), list[int]()
        while waiting or flying:
            if waiting and (not flying or random.random() < 0.5):
                tensor = waiting.pop(random.randrange(len(waiting)))
                ready[tensor] += 1
                # The last to be ready may be any rank, this one or another.
                hear = random.choice([_find_out(leader), _hear(leader, talk)])
                starts = hear(tensor)
            else:
                starts = leader.notify_finish(flying.pop(random.randrange(len(flying))), 0.0)
            for start in starts:
                there = [
                    number
                    for number, operation in enumerate(plan.operations)
                    if all(ready[part.tensor] == world for part in operation.parts)
                ]
                assert start.operation == min(set(there) - set(started))
                started.append(start.operation)
                flying.append(start.operation)
        assert sorted(started) == list(range(len(plan.operations)))
        assert talk.said == started
        assert talk.round == round_number
        assert all(leader.is_synchronised(tensor) for tensor in range(len(job.tensors)))


def _find_out(leader: _Leader):  # type: ignore[no-untyped-def]
    return lambda tensor: leader.notify_all_ready([tensor], 0.0)


def _hear(leader: _Leader, talk: Talk):  # type: ignore[no-untyped-def]
    return lambda tensor: leader.hear(talk.round, tensor, 0.0)


@given(JOBS)
def test_a_rank_may_be_a_round_ahead(job: Job) -> None:
    plan, talk = by_need(job), Talk(2)
    leader = _Leader(talk, plan)  # type: ignore[arg-type]
    leader.reset()
    for tensor in range(len(job.tensors)):
        assert leader.hear(1, tensor, 0.0) == []
    leader.reset()
    assert leader.notify_all_ready(range(len(job.tensors)), 0.0)


@given(JOBS)
def test_who_follows_says_what_is_ready_and_does_what_it_is_told(job: Job) -> None:
    plan, talk = by_need(job), Talk(2)
    follower = _Follower(talk, plan)  # type: ignore[arg-type]
    follower.reset()
    assert follower.notify_all_ready(range(len(job.tensors)), 0.0) == []
    assert talk.said == list(range(len(job.tensors)))
    for operation in range(len(plan.operations)):
        assert not all(map(follower.is_synchronised, range(len(job.tensors))))
        assert [start.operation for start in follower.hear(0, operation, 0.0)] == [operation]
        assert follower.notify_finish(operation, 0.0) == []
    assert all(map(follower.is_synchronised, range(len(job.tensors))))
    with pytest.raises(PlanMismatch, match="an order for round 1 in round 0"):
        follower.hear(1, 0, 0.0)


def late_to_begin(rank: int, who: int) -> bool:
    """Train for real, while one rank has met the others long before it has an engine."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    layers = tuple(Layer(f"l{i}", 1e-3, 1e-3) for i in range(3))
    job = Job("three", layers, tuple(Tensor(f"t{i}", 4000, (i,)) for i in range(3)))
    make_engine = Coordinator.make_engine

    def make_late(self: Coordinator, *plan: Any, **settings: Any) -> Any:
        time.sleep(0.3 if rank == who else 0.0)
        return make_engine(self, *plan, **settings)

    Coordinator.make_engine = make_late  # type: ignore[method-assign]
    try:
        trainer = CoordinatedTrainer(Emulated(job, Conditions()), "units", Knobs(4000, 8000), 8)
        trainer.warm_up()
        trainer.repeat(3)
        return trainer.is_exact()
    finally:
        Coordinator.make_engine = make_engine  # type: ignore[method-assign]
        our_groups.cache_clear()


def meeting_a_stranger(rank: int) -> list[int]:
    """Meet, while a stranger is the first to connect to every port that is opened."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    create, strangers = socket.create_server, []

    def open_to_all(address: tuple[str, int], **options: Any) -> socket.socket:
        server = create(address, **options)
        stranger = socket.create_connection(server.getsockname(), 5)
        stranger.sendall(FRAME.pack(0, 7))
        strangers.append(stranger)
        return server

    groups = our_groups()
    socket.create_server = open_to_all  # type: ignore[assignment]
    try:
        coordinator = Coordinator(GlooControl(groups, 30.0))
        coordinator.round = 3
        coordinator.tell([rank])
        return [FRAME.unpack(came.read(FRAME.size))[1] for _, came in coordinator._streams]
    finally:
        socket.create_server = create
        our_groups.cache_clear()
        for stranger in strangers:
            stranger.close()


def test_a_stranger_who_connects_first_is_not_taken_for_a_rank(two_ranks: Pool) -> None:
    assert two_ranks.run(meeting_a_stranger) == [[1], [0]]


@pytest.mark.parametrize("who", [0, 1])
def test_another_rank_may_be_quicker_to_begin(two_ranks: Pool, who: int) -> None:
    assert two_ranks.run(late_to_begin, who=who) == [True, True]
