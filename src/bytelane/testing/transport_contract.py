"""Contract tests of a transport: one rule per test."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bytelane.core import CreditWindow, Operation, Plan, SubTask
from bytelane.runtime.sync import Contribution, Engine, Transport

TIMEOUT_S = 30.0
NAMES = ("a", "b", "c")
SIZES = (40, 8, 4096)


def plan_of(*operations: Sequence[SubTask]) -> Plan:
    return Plan(
        "contract",
        SIZES,
        tuple(Operation(tuple(parts)) for parts in operations),
        CreditWindow(),
        barrier=False,
    )


WHOLE = plan_of(*[[SubTask(t, 0, size)] for t, size in enumerate(SIZES)])
JOINED = plan_of([SubTask(2, 0, 4096), SubTask(0, 0, 40)], [SubTask(1, 0, 8)])
IN_PARTS = plan_of(
    [SubTask(2, 0, 1024)], [SubTask(0, 0, 20), SubTask(1, 0, 8)], [SubTask(0, 20, 40)],
    [SubTask(2, 1024, 4096)],
)  # fmt: skip


class TransportContract:
    """The rules that an engine relies on. Subclass it and connect your transport.

    Every rank is a thread of this process, with a transport and an engine of its own.
    """

    world = 2

    def connect(self, plan: Plan, rank: int) -> Transport:
        """Return the transport of one rank; all ranks call this at the same time."""
        raise NotImplementedError

    def value(self, array: np.ndarray) -> Any:
        """Return these numbers as a tensor of your framework."""
        return array

    def array(self, value: Any) -> np.ndarray:
        """Return a tensor of your framework as numbers."""
        return np.asarray(value)

    def test_every_rank_gets_the_mean_of_all(self) -> None:
        for plan in (WHOLE, JOINED, IN_PARTS):
            for values in self._on_all_ranks(plan, rounds=1):
                for tensor, value in enumerate(values[0]):
                    np.testing.assert_array_equal(value, self._mean(tensor, 0))

    def test_rounds_follow_each_other(self) -> None:
        for values in self._on_all_ranks(IN_PARTS, rounds=3):
            for number in range(3):
                for tensor, value in enumerate(values[number]):
                    np.testing.assert_array_equal(value, self._mean(tensor, number))

    def test_what_no_rank_has_used_is_known_to_all(self) -> None:
        def use(rank: int, transport: Transport) -> list[bool]:
            used = [rank == 1, False, True]
            self._round(transport, WHOLE, rank, 0, used)
            return [transport.was_used(tensor) for tensor in range(len(SIZES))]

        assert self._run(WHOLE, use) == [[True, False, True]] * self.world

    def test_what_the_first_rank_signals_reaches_all(self) -> None:
        def signal(rank: int, transport: Transport) -> list[int]:
            heard = []
            for number, wish in enumerate((0, 3, 0)):
                self._round(transport, WHOLE, rank, number, [True] * 3, wish if rank == 0 else 0)
                heard.append(transport.signalled)
            return heard

        assert self._run(WHOLE, signal) == [[0, 3, 0]] * self.world

    def test_a_launch_does_not_wait_for_the_others(self) -> None:
        launched = threading.Barrier(self.world, timeout=TIMEOUT_S)

        def launch(rank: int, transport: Transport) -> bool:
            engine = self._engine(transport, WHOLE)
            engine.begin_iteration()
            transport.begin_round(0, 0)
            if rank == 0:  # the others have not even begun
                self._take_all(transport, engine, rank, 0, [True] * 3)
                launched.wait()
            else:
                launched.wait()
                self._take_all(transport, engine, rank, 0, [True] * 3)
            engine.wait(range(3))
            return True

        assert all(self._run(WHOLE, launch))

    # --- helpers ------------------------------------------------------------------------------

    def _mean(self, tensor: int, number: int) -> np.ndarray:
        # As in DDP: divided first, then added. Two ranks add in one order only.
        parts = [self._mine(tensor, rank, number) / self.world for rank in range(self.world)]
        return np.asarray(np.sum(parts, axis=0, dtype=np.float32))

    def _mine(self, tensor: int, rank: int, number: int) -> np.ndarray:
        chance = np.random.default_rng([tensor, rank, number])
        return chance.normal(size=SIZES[tensor] // 4).astype(np.float32)

    def _engine(self, transport: Transport, plan: Plan) -> Engine:
        return Engine.of_plan(plan, transport, NAMES, timeout_s=TIMEOUT_S)

    def _take_all(
        self, transport: Transport, engine: Engine, rank: int, number: int, used: list[bool]
    ) -> list[Any]:
        values = [self.value(self._mine(t, rank, number).copy()) for t in range(len(SIZES))]
        order = np.random.default_rng([rank, number]).permutation(len(SIZES))
        for tensor in map(int, order):  # ranks are ready in different orders
            transport.take([Contribution(tensor, values[tensor], used[tensor])])
            engine.notify_ready(tensor)
        return values

    def _round(
        self,
        transport: Transport,
        plan: Plan,
        rank: int,
        number: int,
        used: list[bool],
        signal: int = 0,
    ) -> list[np.ndarray]:
        engine = self._engine(transport, plan)
        engine.begin_iteration()
        transport.begin_round(0, number, signal=signal)
        values = self._take_all(transport, engine, rank, number, used)
        engine.wait(range(len(SIZES)))
        for tensor in range(len(SIZES)):
            transport.forget(tensor)
        return [self.array(value).copy() for value in values]

    def _on_all_ranks(self, plan: Plan, rounds: int) -> list[list[list[np.ndarray]]]:
        def train(rank: int, transport: Transport) -> list[list[np.ndarray]]:
            return [self._round(transport, plan, rank, k, [True] * 3) for k in range(rounds)]

        return self._run(plan, train)

    def _run(self, plan: Plan, do: Callable[[int, Transport], Any]) -> list[Any]:
        results: list[Any] = [None] * self.world
        errors: list[BaseException] = []

        def be_rank(rank: int) -> None:
            try:
                results[rank] = do(rank, self.connect(plan, rank))
            except BaseException as error:
                errors.append(error)

        ranks = [threading.Thread(target=be_rank, args=(r,)) for r in range(self.world)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(2 * TIMEOUT_S)
        assert not errors, errors
        assert not any(thread.is_alive() for thread in ranks), "a rank hangs"
        return results
