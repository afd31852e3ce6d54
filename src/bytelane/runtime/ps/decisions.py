"""Decide what a worker pushes and pulls next: one scheduler, and one window, per server.

A window over all servers would let one slow server hold the pushes to the others up; measured with
four workers and four servers, a window per connection was 8 % faster. Pulls have no window here:
the server decides in which order sums leave it.

::

    tensor is ready ─▶ ServerDecisions ─▶ Scheduler of server 0 ─▶ push 0, push 1
                                      └─▶ Scheduler of server 1 ─▶ push 2
    push 2 is taken ─▶ ServerDecisions ─▶ Scheduler of server 1 ─▶ pull 2
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from bytelane.core import CreditWindow, Event, Groups, Policy, Scheduler, Stage, Start
from bytelane.core.kernel import ALL_OF_IT
from bytelane.core.table import policy_state
from bytelane.errors import IllegalEvent, InputError
from bytelane.job import Job, Tensor
from bytelane.runtime.ps.slices import Slice, Slices


class _Server(NamedTuple):
    """The decisions for one server; its tensors are the parts of its slices."""

    scheduler: Scheduler
    first: int
    """Where its slices begin among those of all servers."""
    slices: int
    parts_of: list[list[int]]
    """Tensor of the job -> those of the scheduler."""

    def number(self, operation: int, total: int) -> int:
        """Return the number over all servers: pushes first, then pulls."""
        stage, own = divmod(operation, self.slices)
        return stage * total + self.first + own


class ServerDecisions:
    """A worker's pushes and pulls in one round, by the policy; satisfies the engine's Decider."""

    def __init__(
        self,
        policy: Policy,
        job: Job,
        slices: Slices,
        table_bytes: Callable[[int], int] | None = None,
    ) -> None:
        """``table_bytes``: slice of a table -> how much of it this worker pushes in this round."""
        if [stage.collective for stage in policy.stages] != ["push", "pull"]:
            raise InputError(f"policy {policy.name} is not made for servers: it does not push")
        self.events: list[Event] = []
        self._slices = slices
        self._table_bytes = table_bytes
        self._tables: dict[int, list[int]] = {}
        """Tensor of which only touched rows travel -> its slices."""
        for number, one in enumerate(slices.all):
            if one.rows:
                self._tables.setdefault(one.parts[0].tensor, []).append(number)
        self._tensors = [one.tensors for one in slices.all]
        self._carriers = [0] * len(job.tensors)
        for tensors in self._tensors:
            for tensor in tensors:
                self._carriers[tensor] += 1
        self._servers = {
            server: _server(policy, job, slices.of_server(server), slices.first[server])
            for server in range(slices.servers)
            if slices.counts[server]
        }
        self._after_backward = policy.after_backward
        self._after_all = policy.stages[1].after_all
        self.reset()

    def reset(self) -> None:
        """Begin a round: nothing is ready or in flight."""
        for server in self._servers.values():
            server.scheduler.reset()
        self.events.clear()
        self._missing = self._carriers.copy()
        self._ready: dict[int, None] = {}  # in the order in which they came
        self._pushes_missing = len(self._slices)
        self._held: list[Start] = []  # pulls that wait for the pushes of other servers

    def notify_all_ready(self, tensors: Iterable[int], now: float) -> list[Start]:
        """Record that these gradients are complete; decide once, after the last of them."""
        tensors = tuple(tensors)
        self._require_new(tensors)
        self._ready |= dict.fromkeys(tensors)
        self.events += [Event(now, "ready", tensor) for tensor in tensors]
        if self._after_backward:
            # The backward pass is over when the last gradient is there.
            if len(self._ready) < len(self._carriers):
                return []
            tensors = tuple(self._ready)
        self._resize_tables(tensors)
        starts = []
        for server in self._servers.values():
            if parts := [part for tensor in tensors for part in server.parts_of[tensor]]:
                found = server.scheduler.notify_all_ready(parts, now)
                starts += self._numbered(server, found)
        return starts

    def notify_finish(self, operation: int, now: float) -> list[Start]:
        """Record that a push was taken or a sum has arrived; return what starts."""
        total = len(self._slices)
        if not 0 <= operation < 2 * total:
            raise IllegalEvent(f"there is no operation {operation}")
        stage, number = divmod(operation, total)
        place, own = self._slices.place(number)
        server = self._servers[place]
        try:
            found = server.scheduler.notify_finish(stage * server.slices + own, now)
        except IllegalEvent:
            text = f"operation {operation} finished, but it is not in flight"
            raise IllegalEvent(text) from None
        self.events.append(Event(now, "finish", operation))
        if stage:
            for tensor in self._tensors[number]:
                self._missing[tensor] -= 1
        else:
            self._pushes_missing -= 1
        return self._allowed(self._numbered(server, found))

    def is_synchronised(self, tensor: int) -> bool:
        """Tell whether every slice of the tensor was pulled."""
        return self._missing[tensor] == 0

    def _resize_tables(self, tensors: Iterable[int]) -> None:
        """Let the pushes of touched rows claim what they have in this round."""
        if self._table_bytes is not None and self._tables:
            for number in (n for tensor in tensors for n in self._tables.get(tensor, ())):
                place, own = self._slices.place(number)
                self._servers[place].scheduler.resize(own, self._table_bytes(number))

    def _allowed(self, starts: list[Start]) -> list[Start]:
        """Hold pulls back until all servers have taken all pushes, if the policy says so."""
        if not self._after_all:
            return starts
        pulls = [start for start in starts if start.operation >= len(self._slices)]
        self._held += pulls
        allowed = starts[: len(starts) - len(pulls)]  # a scheduler starts pushes first
        if not self._pushes_missing:
            allowed += self._held
            self._held = []
        return allowed

    def _numbered(self, server: _Server, starts: Sequence[Start]) -> list[Start]:
        total = len(self._slices)
        return [s._replace(operation=server.number(s.operation, total)) for s in starts]

    def _require_new(self, tensors: tuple[int, ...]) -> None:
        seen = set(self._ready)
        for tensor in tensors:
            if not 0 <= tensor < len(self._carriers):
                raise IllegalEvent(f"there is no tensor {tensor}; there are {len(self._carriers)}")
            if tensor in seen:
                raise IllegalEvent(f"tensor {tensor} was ready already in this iteration")
            seen.add(tensor)


def _server(policy: Policy, job: Job, slices: Sequence[Slice], first: int) -> _Server:
    """Make the policy's scheduler of one server: a tensor per part, a group per slice."""
    parts = [(number, part) for number, one in enumerate(slices) for part in one.parts]
    parts_of: list[list[int]] = [[] for _ in job.tensors]
    for place, (_, part) in enumerate(parts):
        parts_of[part.tensor].append(place)
    tensors = tuple(
        Tensor(job.tensors[part.tensor].name, part.bytes, job.tensors[part.tensor].layers)
        for _, part in parts
    )
    push, pull = (
        replace(stage, priority=tuple(stage.priority[part.tensor] for _, part in parts))
        for stage in policy.stages
    )
    own = replace(
        policy,
        cutting=Groups(tuple(number for number, _ in parts)),
        stages=(push, _unlimited(pull)),
    )
    state = policy_state(own, replace(job, tensors=tensors))
    if policy.first_unit_alone:
        # Groups know no such piece, so its claim on the window is set here. Shared among its
        # slices, so that a sum of claims cannot overflow.
        alone = [number for number, one in enumerate(slices) if one.operation == 0]
        state.claim[alone] = ALL_OF_IT // max(1, len(alone))
    return _Server(Scheduler(state), first, len(slices), parts_of)


def _unlimited(pull: Stage) -> Stage:
    return replace(pull, window=CreditWindow())
