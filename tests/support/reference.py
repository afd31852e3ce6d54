"""A slow, plain simulator of communication scheduling: the oracle the fast one is tested against.

One loop drives two actors. The `Worker` computes forward 0..L-1, backward L-1..0, for ever, and
stops at a forward whose parameters are not synchronised. A network carries the gradients and
reports which tensors have become synchronised. At every instant the loop does three things in a
fixed order: what ends now ends; computing goes on; only then does the scheduler, which has thus
seen all events of the instant, choose what to start.

Durations and sizes are in seconds of link time, all float or all Fraction; with Fractions results
are exact. Rounding of floats can split into two what should be one instant, or leave a sliver as
a tensor's last part. Comments that begin with CHOICE settle what the specification leaves open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Generic, Required, TypedDict, TypeVar, Unpack

T = TypeVar("T", float, Fraction)

_WITH_BARRIER = frozenset({"sequential", "fifo", "fusion", "mg-wfbp"})
_PARTITIONED = frozenset({"p3", "bytescheduler"})
POLICIES = _WITH_BARRIER | _PARTITIONED | {"priority", "dear", "optimal"}


@dataclass(frozen=True)
class Chain(Generic[T]):
    """One training job; a layer whose wire time is 0 has no tensor."""

    forward: Sequence[T]
    backward: Sequence[T]
    wire: Sequence[T]

    def __post_init__(self) -> None:
        if not len(self.forward) == len(self.backward) == len(self.wire):
            raise ValueError("forward, backward and wire must have one entry per layer each")
        if not any(self.forward) and not any(self.backward):
            raise ValueError("some computing must take time, or the clock would never move")

    def tensors(self) -> list[int]:
        """Give the layers that have a tensor, in the order in which gradients become ready."""
        return [layer for layer in reversed(range(len(self.wire))) if self.wire[layer] > 0]


@dataclass
class Worker(Generic[T]):
    """The compute stream."""

    chain: Chain[T]
    barrier: bool
    position: int = 0  # among the forward and then the backward operations of an iteration
    busy_until: T | None = None
    unsynchronised: set[int] = field(default_factory=set)  # the first iteration waits for nothing
    iteration_starts: list[T] = field(default_factory=list)

    def advance(self, now: T) -> list[int]:
        """Compute as far as possible at `now`; return the layers whose gradients became ready."""
        durations = list(self.chain.forward) + list(reversed(self.chain.backward))
        gradients: list[int] = []
        while True:  # ends: even if some operations take no time, a whole iteration does
            forward = self.position < len(self.chain.forward)
            layer = self.position if forward else len(durations) - 1 - self.position
            if self.busy_until is None:
                if forward and self._must_wait(layer):
                    return gradients
                if self.position == 0:
                    self.iteration_starts.append(now)
                self.busy_until = now + durations[self.position]
            if self.busy_until > now:
                return gradients
            if not forward:
                gradients.append(layer)
                if self.chain.wire[layer] > 0:
                    self.unsynchronised.add(layer)
            self.busy_until = None
            self.position = (self.position + 1) % len(durations)

    def _must_wait(self, layer: int) -> bool:
        return bool(self.unsynchronised) if self.barrier else layer in self.unsynchronised


@dataclass(frozen=True)
class Message(Generic[T]):
    """A sub-task: a tensor, a part of one, or several tensors merged."""

    layers: tuple[int, ...]
    part: int
    wire: T
    ready_after: int  # the layer whose backward releases it


@dataclass(frozen=True)
class Stage:
    """One of the transfers that each message goes through in turn."""

    link: int = 0
    divisor: int = 1  # the stage costs the message's wire time, theta and floor divided by this
    by_layer: bool = False  # lowest (layer, part) first, else first come, first served
    after_all: bool = False  # opens when all messages have finished the stage before


@dataclass
class MessageNetwork(Generic[T]):
    """Serial links fed by a scheduler.

    To start a message is to hand it to the link, where it waits behind all that was started
    before and can no longer be overtaken: that is the price of a large credit.
    """

    messages: Sequence[Message[T]]  # of one iteration, in ready order
    stages: Sequence[Stage]
    theta: T
    lam: T
    floor: T
    credit: T | None  # None: no limit
    fusion_buffer: T | None  # None: messages are not merged
    at_once: int  # messages that a link has under way
    queues: list[list[Message[T]]] = field(default_factory=lambda: [[], []])  # one a stage
    waiting_for_all: list[Message[T]] = field(default_factory=list)
    in_flight: list[tuple[T, int, Message[T]]] = field(default_factory=list)  # known at, stage
    link_free_at: dict[int, T] = field(default_factory=dict)
    handled_at: dict[int, T] = field(default_factory=dict)  # by link: the last message
    over_at: dict[int, list[T]] = field(default_factory=lambda: defaultdict(list))  # by link
    parts_left: Counter[int] = field(default_factory=Counter)  # of each layer's tensor

    def accept(self, gradients: Sequence[int]) -> None:
        """Queue what the gradients that have just become ready release."""
        for gradient in gradients:
            released = [m for m in self.messages if m.ready_after == gradient]
            self.queues[0] += released
            self.parts_left.update(layer for m in released for layer in m.layers)

    def start(self, now: T) -> None:
        """Start messages while there are any and credit is left."""
        for index, stage in enumerate(self.stages):
            while self.queues[index] and self._credit_is_left(index):
                message = self._take(index)
                # A link has no more than a few messages under way, of which one is on it and one is
                # handled; either may be the same.
                ends = self.over_at[stage.link][::-1]
                begin = max([now, *ends[self.at_once - 1 : self.at_once]])
                on_link = max(begin, self.link_free_at.get(stage.link, now))
                in_hand = max(begin, self.handled_at.get(stage.link, now))
                last_byte = on_link + (self.theta + message.wire) / stage.divisor
                handled = in_hand + self.floor / stage.divisor
                self.link_free_at[stage.link], self.handled_at[stage.link] = last_byte, handled
                over = max(last_byte, handled)
                self.over_at[stage.link].append(over)
                self.in_flight.append((over + self.lam, index, message))

    def next_event(self) -> T | None:
        """Give the time at which `finish` has something to do."""
        return min((known_at for known_at, _, _ in self.in_flight), default=None)

    def finish(self, now: T) -> list[int]:
        """End what is known to end now; return the layers that are synchronised thereby."""
        finished = [flight for flight in self.in_flight if flight[0] <= now]
        self.in_flight = [flight for flight in self.in_flight if flight[0] > now]
        synchronised: list[int] = []
        for _, stage, message in finished:
            if stage + 1 < len(self.stages):
                self._enter(stage + 1, message)
            else:
                self.parts_left.subtract(message.layers)
                synchronised += [layer for layer in message.layers if not self.parts_left[layer]]
        return synchronised

    def _enter(self, stage: int, message: Message[T]) -> None:
        self.waiting_for_all.append(message)
        if not self.stages[stage].after_all or len(self.waiting_for_all) == len(self.messages):
            # CHOICE: what is released together stands in line in the order of layers.
            self.queues[stage] += sorted(self.waiting_for_all, key=lambda m: m.layers)
            self.waiting_for_all = []

    def _credit_is_left(self, stage: int) -> bool:
        # Theta is not bytes and takes no credit. CHOICE (parameter server): a push gives its
        # credit back when it is itself known to be finished, not when its pull is.
        sizes = [message.wire for _, of_stage, message in self.in_flight if of_stage == stage]
        return self.credit is None or not sizes or _total(sizes) < self.credit

    def _take(self, stage: int) -> Message[T]:
        queue = self.queues[stage]
        if self.stages[stage].by_layer:
            queue.sort(key=lambda message: (min(message.layers), message.part))
        taken = queue.pop(0)
        # CHOICE: a tensor larger than the buffer goes alone; the first that does not fit ends the
        # group, even if a later one would fit; what was pushed as a group is pulled as that group.
        while stage == 0 and queue and self.fusion_buffer is not None:
            wire = taken.wire + queue[0].wire
            if wire > self.fusion_buffer:
                break
            added = queue.pop(0)
            taken = Message(taken.layers + added.layers, 0, wire, added.ready_after)
        return taken


@dataclass
class FluidNetwork(Generic[T]):
    """The ideal link: the lowest ready layer has all of it, from the instant it is ready.

    It has the methods of `MessageNetwork`. It serves for the parameter server too: there a bit may
    be pulled as soon as it is pushed, and as both directions are equally fast and prefer the same
    layer, the pull never lags.
    """

    wire: Sequence[T]
    unsent: dict[int, T] = field(default_factory=dict)
    served: tuple[int, T] | None = None  # the layer, and since when

    def accept(self, gradients: Sequence[int]) -> None:
        self.unsent.update((i, self.wire[i]) for i in gradients if self.wire[i] > 0)

    def start(self, now: T) -> None:
        self.served = (min(self.unsent), now) if self.unsent else None

    def next_event(self) -> T | None:
        return None if self.served is None else self.served[1] + self.unsent[self.served[0]]

    def finish(self, now: T) -> list[int]:
        if self.served is None:
            return []
        layer, since = self.served
        # Compared as times, not as remainders: with floats a remainder may never reach zero.
        if since + self.unsent[layer] <= now:
            del self.unsent[layer]
            return [layer]
        self.unsent[layer] -= now - since
        return []


class Settings(TypedDict, Generic[T], total=False):
    """The keywords of `iteration_times`."""

    theta: Required[T]
    lam: Required[T]
    floor: Required[T]  # to handle a message takes this long, beside the bytes of others
    part: T | None  # p3, bytescheduler; None: whole tensors
    credit: T | None  # p3, bytescheduler; None: no limit
    fusion: T | None  # fusion, None: no limit; dear, None: each tensor alone
    at_once: int  # messages under way on a link; default 2
    barrier: bool | None  # None: as the policy has it
    sync: str  # "allreduce" (default) or "ps"
    iterations: int  # default 8


def iteration_times(chain: Chain[T], policy: str, **settings: Unpack[Settings[T]]) -> list[T]:
    """Simulate from a synchronised start; give the times between forward starts of layer 0."""
    barrier = settings.get("barrier")
    worker = Worker(chain, policy in _WITH_BARRIER if barrier is None else barrier)
    network = _network(chain, policy, settings)
    now = settings["theta"] - settings["theta"]  # a zero of the caller's number type
    while len(worker.iteration_starts) <= settings.get("iterations", 8):
        worker.unsynchronised.difference_update(network.finish(now))
        network.accept(worker.advance(now))
        network.start(now)
        now = min(t for t in (worker.busy_until, network.next_event()) if t is not None)
    return [after - before for before, after in pairwise(worker.iteration_starts)]


def steady_state(chain: Chain[T], policy: str, **settings: Unpack[Settings[T]]) -> T:
    """Average `iteration_times` over the last half of the iterations."""
    times = iteration_times(chain, policy, **settings)
    last_half = times[len(times) // 2 :]
    return _total(last_half) / len(last_half)


def _network(
    chain: Chain[T], policy: str, settings: Settings[T]
) -> MessageNetwork[T] | FluidNetwork[T]:
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}, expected one of {sorted(POLICIES)}")
    sync = settings.get("sync", "allreduce")
    if sync not in ("allreduce", "ps") or (sync, policy) == ("ps", "dear"):
        raise ValueError(f"sync must be 'allreduce' or, except for dear, 'ps', got {sync!r}")
    if policy == "optimal":
        return FluidNetwork(chain.wire)  # theta and lam do not apply to the lower bound
    by_layer = policy in _PARTITIONED or policy == "priority"
    stages = [Stage(by_layer=by_layer)]
    if policy == "dear":
        stages = [Stage(divisor=2), Stage(divisor=2, by_layer=True, after_all=True)]
    elif sync == "ps":
        # Not even push and pull overlap in "sequential": the worked case needs this to be 20 s.
        stages.append(Stage(link=1, by_layer=by_layer, after_all=policy == "sequential"))
    theta, lam, floor = settings["theta"], settings["lam"], settings["floor"]
    fusion = settings.get("fusion")
    credit = settings.get("credit") if policy in _PARTITIONED else None
    if policy in ("priority", "fusion"):
        # One message may always start, so a credit of nothing means one in flight.
        # CHOICE (parameter server): one in each direction, as credit is, not one in all.
        credit = theta - theta
    if policy == "fusion" and fusion is None:
        fusion = _total(chain.wire)
    buffer = fusion if policy == "fusion" else None
    messages = _messages(chain, policy, settings)
    at_once = settings.get("at_once", 2)
    return MessageNetwork(messages, stages, theta, lam, floor, credit, buffer, at_once)


def _messages(chain: Chain[T], policy: str, settings: Settings[T]) -> list[Message[T]]:
    groups = [[layer] for layer in chain.tensors()]
    fusion = settings.get("fusion")
    if policy == "mg-wfbp":
        groups = _groups_of_mg_wfbp(chain, settings["theta"], settings["lam"], settings["floor"])
    elif policy == "dear" and fusion is not None:
        groups = _groups_of_at_most(chain, fusion)
    part = settings.get("part") if policy in _PARTITIONED else None
    messages: list[Message[T]] = []
    for group in groups:
        # Backward goes down, so the lowest layer of a group is the last to be ready.
        ready_after = 0 if policy == "sequential" else min(group)
        sizes = _cut(_wire_of(chain, group), part)
        messages += [Message(tuple(group), n, size, ready_after) for n, size in enumerate(sizes)]
    return messages


def _groups_of_mg_wfbp(chain: Chain[T], theta: T, lam: T, floor: T) -> list[list[int]]:
    """Scan once from the last tensor down, merging a group into the next where that pays."""
    # CHOICE: a transfer ends with its last byte, since lam does not occupy the link; layers
    # without a tensor are skipped; with a parameter server only the pushes are looked at.
    groups = [[layer] for layer in chain.tensors()]
    smallest = min((_wire_of(chain, group) for group in groups), default=theta - theta)
    start_up = max(floor - smallest, theta) + lam  # what it takes beside its bytes
    link_free_at = theta - theta  # counted, as all times here, from the start of backward
    scanned = 0
    while scanned + 1 < len(groups):
        start = max(link_free_at, _total(chain.backward[min(groups[scanned]) :]))
        end = start + max(floor, theta + _wire_of(chain, groups[scanned]))
        next_ready = _total(chain.backward[min(groups[scanned + 1]) :])
        if next_ready < end and (start > next_ready or next_ready - start < start_up):
            groups[scanned] += groups.pop(scanned + 1)
        else:
            link_free_at = end
            scanned += 1
    return groups


def _groups_of_at_most(chain: Chain[T], limit: T) -> list[list[int]]:
    """Group neighbours greedily. CHOICE: from the last layer down, the order of readiness."""
    groups: list[list[int]] = []
    for layer in chain.tensors():
        if groups and _wire_of(chain, [*groups[-1], layer]) <= limit:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def _cut(size: T, part: T | None) -> list[T]:
    """Cut into parts of exactly `part`, the remainder last."""
    if part is not None and part <= 0:
        raise ValueError(f"part must be positive, got {part}")
    sizes: list[T] = []
    while part is not None and size > part:
        sizes.append(part)
        size -= part
    sizes.append(size)
    return sizes


def _wire_of(chain: Chain[T], layers: Sequence[int]) -> T:
    return _total([chain.wire[layer] for layer in layers])


def _total(values: Sequence[T]) -> T:
    return sum(values[1:], start=values[0])


@dataclass(frozen=True)
class Graph(Generic[T]):
    """A step as TicTac sees it; `needs` names the operations and receives an operation awaits."""

    receives: Mapping[str, T]  # name -> transfer time
    operations: Mapping[str, T]  # name -> computing time
    needs: Mapping[str, Sequence[str]]

    def receives_behind(self, operation: str) -> set[str]:
        """Give all receives that must be complete before `operation`, however indirectly."""
        behind: set[str] = set()
        for need in self.needs.get(operation, ()):
            behind |= {need} if need in self.receives else self.receives_behind(need)
        return behind


def tic_order(graph: Graph[T]) -> list[list[str]]:
    """Sort the receives by M+, counted in receives; equals share a list, in the graph's order."""
    behind = [graph.receives_behind(operation) for operation in graph.operations]
    last = len(graph.receives) + 1  # CHOICE: receives that nothing depends on come last
    ranks: dict[int, list[str]] = {}
    for receive in graph.receives:
        rank = min((len(receives) for receives in behind if receive in receives), default=last)
        ranks.setdefault(rank, []).append(receive)
    return [ranks[rank] for rank in sorted(ranks)]


def tac_order(graph: Graph[T]) -> list[str]:
    """Pick the best receive, round by round."""
    outstanding = list(graph.receives)
    order: list[str] = []
    while outstanding:
        # CHOICE: as "better" is not transitive under ties, the way of looking matters: one scan
        # in the graph's order, in which a receive displaces the best so far if strictly better.
        best = outstanding[0]
        for candidate in outstanding[1:]:
            if _tac_before(graph, outstanding, candidate, best):
                best = candidate
        outstanding.remove(best)
        order.append(best)
    return order


def _tac_before(graph: Graph[T], outstanding: Sequence[str], a: str, b: str) -> bool:
    unlocked_a, shared_a = _tac_properties(graph, outstanding, a)
    unlocked_b, shared_b = _tac_properties(graph, outstanding, b)
    cost_of_a_first = min(unlocked_b, graph.receives[a])
    cost_of_b_first = min(unlocked_a, graph.receives[b])
    if cost_of_a_first != cost_of_b_first:
        return cost_of_a_first < cost_of_b_first
    # CHOICE: without an operation that awaits several, M+ is infinite: it loses ties.
    return shared_a is not None and (shared_b is None or shared_a < shared_b)


def _tac_properties(
    graph: Graph[T], outstanding: Sequence[str], receive: str
) -> tuple[T, T | None]:
    """Give P, the computing that `receive` alone unlocks, and M+ (None: no such operation)."""
    unlocked = graph.receives[receive] - graph.receives[receive]
    shared: list[T] = []
    for operation, seconds in graph.operations.items():
        behind = graph.receives_behind(operation)
        awaited = [other for other in outstanding if other in behind]
        if awaited == [receive]:
            unlocked += seconds
        elif receive in awaited:
            shared.append(_total([graph.receives[other] for other in awaited]))
    return unlocked, min(shared, default=None)
