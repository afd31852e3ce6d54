"""The ablation in which rank 0 decides the order of operations while training runs.

All ranks report ready gradients to rank 0. Of the operations that are ready on every rank it starts
the one that is needed first, and tells the other ranks, which launch it. So a decision costs two
messages and knows only the gradients that are ready; a plan costs none, and knows what comes next.
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
from bytelane.core import Event, Plan, PlannedBy, Planner, Scheduler, Start
from bytelane.errors import PlanMismatch, TransferFailed
from bytelane.job import Job
from bytelane.lab.token import TOKEN_BYTES, accept_known, new_token
from bytelane.runtime.sync import Engine, Operations, Transport
from bytelane.runtime.torch.agreement import bytes_from
from bytelane.runtime.torch.control import Control

# The number of a round, and a tensor that is ready or an operation to start in it.
FRAME = struct.Struct("<ii")
# Rank 0's port, and the token by which the other ranks authenticate.
PLACE = struct.Struct(f"<H{TOKEN_BYTES}s")
# Minimise delay: in queues with priorities, a decision overtakes gradients.
LOW_DELAY = 0x10
CONNECTED_WITHIN_S = 30.0


def preferring_what_is_needed_first(planner: Planner) -> Planner:
    """Sort the operations of every plan by first use, whichever is ready first."""

    def plan(job: Job, cluster: Cluster | None, version: int) -> Plan:
        made = planner.plan(job, cluster, version)

        def needed(number: int) -> tuple[int, int, int]:
            parts = made.operations[number].parts
            return min((job.tensors[p.tensor].layers[0], p.tensor, p.start) for p in parts)

        order = sorted(range(len(made.operations)), key=needed)
        return msgspec.structs.replace(made, operations=tuple(made.operations[k] for k in order))

    return PlannedBy(plan, planner.name)


class Coordinator:
    """Connects a rank with rank 0, and rank 0 with all others, through all plans of a run."""

    def __init__(self, control: Control) -> None:
        self.rank, self.world = control.rank, control.size
        self.round = -1
        self.ready: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Round -> tensor -> number of ranks on which it is ready; a rank may be a round ahead."""
        self._streams = _meet(control)
        self._installing = threading.Lock()
        self._decider: _Leader | _Follower
        self._engine: Engine | None = None

    def make_engine(
        self, plan: Plan, transport: Transport, names: tuple[str, ...], **settings: Any
    ) -> Engine:
        """Carry out a plan's operations, in the order that rank 0 decides."""
        with self._installing:
            self._decider = _Leader(self, plan) if self.rank == 0 else _Follower(self, plan)
            operations = Operations.of_plan(plan, names)
            engine = Engine(self._decider, operations, transport, **settings)
            if self._engine is None:  # not earlier: a message of a quicker rank needs the engine
                self._start_listening()
            self._engine = engine
        return engine

    def tell(self, numbers: Iterable[int]) -> None:
        """Send these numbers to rank 0, or from rank 0 to all others."""
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
        except Exception as error:  # any: else it would be lost in this thread
            assert self._engine is not None
            self._engine.fail(TransferFailed(f"the order of operations was lost: {error}"))

    def _hear(self, of_round: int, number: int, now: float) -> list[Start]:
        return self._decider.hear(of_round, number, now)


class _Leader:
    """Starts the most urgent of the operations that are ready on every rank."""

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
        # A tensor of a round that has not begun here is not ready everywhere: this rank is missing.
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
    """Reports ready tensors to rank 0, and launches the operations that rank 0 decides."""

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
        # Rank 0 decides nothing in a round before this rank has reported ready tensors in it.
        if of_round != self._coordinator.round:
            raise PlanMismatch(f"an order for round {of_round} in round {self._coordinator.round}")
        return [Start(operation, now)]

    def notify_finish(self, operation: int, now: float) -> list[Start]:
        self._missing.subtract(self._tensors[operation])
        return []

    def is_synchronised(self, tensor: int) -> bool:
        return not self._missing[tensor]


def _meet(control: Control) -> list[tuple[socket.socket, BinaryIO]]:
    """Connect rank 0 with every other rank; refuse connections without the token."""
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
