"""The ablation in which the first rank decides the order while training runs.

It is told by all ranks which gradients are ready, starts what is needed first among those that are
ready everywhere, and tells the others, who launch what they are told. So every decision costs two
messages, and is made with what is known by then; a plan costs none, and knows what comes next.
"""

import os
import socket
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any, BinaryIO

import msgspec

from bytelane.cluster import Cluster
from bytelane.core import Event, Plan, Planner, Scheduler, Start, Transport
from bytelane.errors import PlanMismatch, TransferFailed
from bytelane.job import Job
from bytelane.lab.token import TOKEN_BYTES, accept_known, new_token
from bytelane.runtime.engine import Engine
from bytelane.runtime.torch.agreement import bytes_from
from bytelane.runtime.torch.control import Control

# A round, and a tensor that is ready or an operation that is to start in it.
FRAME = struct.Struct("<ii")
# The first rank's port, and the token with which the others show that they belong to the run.
PLACE = struct.Struct(f"<H{TOKEN_BYTES}s")
# Minimise delay: where queues know priorities, a decision does not stand behind gradients.
LOW_DELAY = 0x10
CONNECTED_WITHIN_S = 30.0


def preferring_what_is_needed_first(planner: Planner) -> Planner:
    """Number the operations of every plan by who is needed first, whatever is ready first."""

    def plan(job: Job, version: int, cluster: Cluster | None = None) -> Plan:
        made = planner(job, version, cluster)

        def needed(number: int) -> tuple[int, int, int]:
            parts = made.operations[number].parts
            return min((job.tensors[p.tensor].layers[0], p.tensor, p.start) for p in parts)

        order = sorted(range(len(made.operations)), key=needed)
        return msgspec.structs.replace(made, operations=tuple(made.operations[k] for k in order))

    return plan


class Coordinator:
    """One rank's side of the talk, through all plans of a run."""

    def __init__(self, control: Control) -> None:
        self.rank, self.world = control.rank, control.size
        self.round = -1
        self.ready: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Round -> tensor -> on how many ranks it is ready; others may be a round ahead."""
        self._streams = _meet(control)
        self._installing = threading.Lock()
        self._decider: _Leader | _Follower
        self._engine: Engine | None = None

    def make_engine(self, plan: Plan, transport: Transport, **settings: Any) -> Engine:
        """Carry out a plan's operations, in the order that the first rank decides."""
        with self._installing:
            self._decider = _Leader(self, plan) if self.rank == 0 else _Follower(self, plan)
            engine = Engine(plan, transport, scheduler=self._decider, **settings)
            if self._engine is None:  # not any earlier: another rank may be quicker to begin
                self._start_listening()
            self._engine = engine
        return engine

    def tell(self, numbers: Iterable[int]) -> None:
        """Send these numbers to the first rank, or from it to all others."""
        frames = b"".join(FRAME.pack(self.round, number) for number in numbers)
        for outgoing, _ in self._streams:
            outgoing.sendall(frames)

    def _start_listening(self) -> None:
        for number, (_, incoming) in enumerate(self._streams):
            name = f"coordinator-{number}"
            threading.Thread(target=self._listen, args=(incoming,), name=name, daemon=True).start()

    def _listen(self, incoming: BinaryIO) -> None:
        try:
            while frame := incoming.read(FRAME.size):
                hear = partial(self._hear, *FRAME.unpack(frame))
                with self._installing:
                    assert self._engine is not None
                    self._engine.launch_what(hear)
        except Exception as error:  # whatever it is: nobody else would hear of it
            assert self._engine is not None
            self._engine.fail(TransferFailed(f"the talk about the order broke off: {error}"))

    def _hear(self, of_round: int, number: int, now: float) -> list[Start]:
        return self._decider.hear(of_round, number, now)


class _Leader:
    """Decides: the most preferred of those operations that are ready everywhere."""

    def __init__(self, coordinator: Coordinator, plan: Plan) -> None:
        self._coordinator = coordinator
        self._scheduler = Scheduler.of_plan(plan, in_order=False)

    @property
    def events(self) -> list[Event]:
        return self._scheduler.events

    def reset(self) -> None:
        self._coordinator.ready.pop(self._coordinator.round, None)
        self._coordinator.round += 1
        self._scheduler.reset()

    def notify_all_ready(self, tensors: Iterable[int], now: float) -> list[Start]:
        return self._hear_all(self._coordinator.round, tensors, now)

    def hear(self, of_round: int, tensor: int, now: float) -> list[Start]:
        return self._hear_all(of_round, (tensor,), now)

    def _hear_all(self, of_round: int, tensors: Iterable[int], now: float) -> list[Start]:
        # Never all are ready of a round that has not begun here: this rank is one of them.
        ready = self._coordinator.ready[of_round]
        ready.update(tensors := tuple(tensors))
        everywhere = [tensor for tensor in tensors if ready[tensor] == self._coordinator.world]
        return self._decided(self._scheduler.notify_all_ready(everywhere, now))

    def notify_finish(self, operation: int, now: float) -> list[Start]:
        return self._decided(self._scheduler.notify_finish(operation, now))

    def is_synchronised(self, tensor: int) -> bool:
        return self._scheduler.is_synchronised(tensor)

    def _decided(self, starts: list[Start]) -> list[Start]:
        if starts:
            self._coordinator.tell(start.operation for start in starts)
        return starts


class _Follower:
    """Says what is ready, and launches what it is told."""

    def __init__(self, coordinator: Coordinator, plan: Plan) -> None:
        self.events: list[Event] = []
        self._coordinator = coordinator
        self._tensors = [{part.tensor for part in op.parts} for op in plan.operations]
        self._pieces = Counter(tensor for tensors in self._tensors for tensor in tensors)
        self._missing = self._pieces.copy()

    def reset(self) -> None:
        self._coordinator.round += 1
        self._missing = self._pieces.copy()

    def notify_all_ready(self, tensors: Iterable[int], now: float) -> list[Start]:
        self._coordinator.tell(tensors)
        return []

    def hear(self, of_round: int, operation: int, now: float) -> list[Start]:
        # Nothing is decided of a round before this rank has said in it what is ready.
        if of_round != self._coordinator.round:
            raise PlanMismatch(f"told of round {of_round} in round {self._coordinator.round}")
        return [Start(operation, now)]

    def notify_finish(self, operation: int, now: float) -> list[Start]:
        self._missing.subtract(self._tensors[operation])
        return []

    def is_synchronised(self, tensor: int) -> bool:
        return not self._missing[tensor]


def _meet(control: Control) -> list[tuple[socket.socket, BinaryIO]]:
    """Connect the first rank with every other one; a stranger who connects is turned away."""
    host = os.environ["MASTER_ADDR"]
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    if control.rank == 0:
        with socket.create_server((host, 0), family=family) as server:
            token = new_token()
            bytes_from(0, PLACE.pack(server.getsockname()[1], token), control)
            connections = accept_known(server, token, control.size - 1, CONNECTED_WITHIN_S)
    else:
        port, token = PLACE.unpack(bytes_from(0, b"", control))
        connections = [socket.create_connection((host, port), CONNECTED_WITHIN_S)]
        connections[0].sendall(token)
    for connection in connections:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection.family == socket.AF_INET6:
            connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, LOW_DELAY)
        else:
            connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, LOW_DELAY)
    return [(connection, connection.makefile("rb")) for connection in connections]
