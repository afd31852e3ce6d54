"""Push a worker's gradients to the servers and pull their sums: a transport of the engine.

Operation ``k`` pushes slice ``k`` and is over when its server has taken it. Operation ``n + k``
pulls its sum, which the server sends unasked, and is over when the sum was written into the memory
of the contribution.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bytelane.errors import TrainingError, TransferFailed
from bytelane.runtime.ps.connections import Connections
from bytelane.runtime.ps.frames import Got, Layout, Push, Row, Sum, Taken, encode_table
from bytelane.runtime.ps.slices import Slice, Slices
from bytelane.runtime.ps.sparse_rows import RowSparse, decode_rows
from bytelane.runtime.sync import Contribution, Done, Message

Bytes = npt.NDArray[np.uint8]
Scale = Callable[[Sequence[Any], float], None]
"""Multiply the framework's arrays by a factor, in place."""
AsBytes = Callable[[Any], Bytes]
"""Return the memory of one of the framework's arrays, not a copy."""


class Served(NamedTuple):
    """What is pushed and pulled from now on, as all ranks and servers know it."""

    slices: Slices
    number: int = 0
    """Of the layout: rises with every change."""
    places: Sequence[int] | None = None
    """Per slice: its place in the order of pulls; None: first summed, first sent."""
    credit_bytes: int | None = None
    """How much a server sends this worker before it has an acknowledgement."""
    straggler_first: bool = False


class _Pending(NamedTuple):
    """A message that is not over, and its operations that are not."""

    message: Message
    done: Done
    missing: set[int]


class PsTransport:
    """Sums the contributions of all workers on the servers, round by round."""

    def __init__(
        self,
        connections: Connections,
        served: Served,
        *,
        scale: Scale | None = None,
        as_bytes: AsBytes | None = None,
    ) -> None:
        self.signalled = 0
        self.misplaced = 0
        """How many answers of servers belonged to nothing that was under way."""
        self._connections = connections
        self._slices = served.slices
        self._number = served.number
        self._scale = scale or _scale
        self._as_bytes = as_bytes or _as_bytes
        self._round = -1
        self._signal = 0
        self._lock = threading.Lock()
        """Never held while ``done`` is called: that takes the engine's lock."""
        self._held: dict[int, Bytes] = {}
        self._tables: dict[int, RowSparse] = {}
        self._used: dict[int, bool] = {}
        self._used_by_any: set[int] = set()
        self._pending: dict[int, _Pending] = {}
        self._early: dict[int, tuple[Sum, memoryview]] = {}
        """Sums that have arrived before their pull was started."""
        self._failure: TrainingError | None = None
        connections.listen(Taken, self._taken)
        connections.listen(Sum, self._summed)
        connections.on_failure("transport", self._fail)
        self._announce(served)

    # --- Transport -----------------------------------------------------------------------------

    def begin_round(self, step: int, number: int, *, signal: int = 0) -> None:
        """Begin a round, all ranks the same one."""
        with self._lock:
            self._round += 1
            self._signal, self.signalled = signal, 0
            self._used_by_any.clear()
            self._early.clear()

    def take(self, contributions: Sequence[Contribution]) -> None:
        """Keep these contributions, each divided by the number of workers."""
        world = self._connections.member.world
        dense = [one for one in contributions if not isinstance(one.value, RowSparse)]
        if world > 1 and dense:
            self._scale([one.value for one in dense], 1 / world)
        for tensor, value, used in contributions:
            if isinstance(value, RowSparse):
                value.divide(world)
                self._tables[tensor], self._used[tensor] = value, used
                continue
            held = self._as_bytes(value)
            if held.size != self._slices.tensor_bytes[tensor]:
                raise TransferFailed(
                    f"tensor {tensor} has {held.size} bytes, not the "
                    f"{self._slices.tensor_bytes[tensor]} of the layout"
                )
            self._held[tensor] = held
            self._used[tensor] = used

    def start(self, message: Message, done: Done) -> None:
        """Push slices, or let their sums come."""
        total = len(self._slices)
        with self._lock:
            failure = self._failure
            if failure is None:
                pending = _Pending(message, done, set(message))
                self._pending |= dict.fromkeys(message, pending)
        if failure is not None:
            done(message, failure)
            return
        for operation in message:
            if operation < total:
                self._push(operation)
            else:
                with self._lock:
                    early = self._early.pop(operation, None)
                if early is not None:
                    self._pulled(operation, *early)

    def forget(self, tensor: int) -> None:
        """Let go of a tensor that has arrived."""
        if self._tables.pop(tensor, None) is None:
            del self._held[tensor]

    def table_bytes(self, number: int) -> int:
        """Return how much of a table's slice this worker pushes in this round."""
        one = self._slices.all[number]
        return self._tables[one.parts[0].tensor].bytes_of(one.first_row, one.rows)

    def was_used(self, tensor: int) -> bool:
        """Tell whether any worker's backward pass has reached it."""
        return tensor in self._used_by_any

    # --- to the servers ------------------------------------------------------------------------

    def _announce(self, served: Served) -> None:
        slices, credit = self._slices, served.credit_bytes
        places = served.places or [0] * len(slices)
        for server in range(slices.servers):
            first = slices.first[server]
            rows = [
                _row(one, places[first + own]) for own, one in enumerate(slices.of_server(server))
            ]
            layout = Layout(self._number, slices.digest, credit, served.straggler_first)
            self._connections.send(server, layout, encode_table(rows))

    def _push(self, number: int) -> None:
        server, own = self._slices.place(number)
        one = self._slices.all[number]
        parts = one.parts
        used = bytes(self._used[part.tensor] for part in parts)
        header = Push(self._number, self._round, own, used, self._signal)
        self._connections.send(server, header, self._payload(one))

    def _payload(self, one: Slice) -> memoryview:
        if one.rows:
            return self._tables[one.parts[0].tensor].payload(one.first_row, one.rows)
        rows = [self._held[part.tensor][part.start : part.stop] for part in one.parts]
        return (rows[0] if len(rows) == 1 else np.concatenate(rows)).data

    # --- from the servers: in the I/O thread ---------------------------------------------------

    def _taken(self, server: int, header: Taken, payload: memoryview) -> None:
        operation = self._operation(server, header)
        if operation is not None:
            self._finish(operation)

    def _summed(self, server: int, header: Sum, payload: memoryview) -> None:
        number = self._operation(server, header)
        if number is None:
            return
        operation = len(self._slices) + number
        one = self._slices.all[number]
        if not _fits(one, payload) or len(header.used) != len(one.parts):
            name = self._connections.name(server)
            self._connections.fail(TransferFailed(f"{name} has sent a sum of another size"))
            return
        with self._lock:
            if operation not in self._pending:
                self._early[operation] = header, payload
                return
        self._pulled(operation, header, payload)

    def _pulled(self, operation: int, header: Sum, payload: memoryview) -> None:
        """Write a sum over the contributions, and acknowledge it."""
        number = operation - len(self._slices)
        server, own = self._slices.place(number)
        one = self._slices.all[number]
        if one.rows:
            self._put_rows(one, payload)
        else:
            self._put(one, payload)
        for part, used in zip(one.parts, header.used, strict=True):
            if used:
                self._used_by_any.add(part.tensor)
        self.signalled = max(self.signalled, header.signal)
        self._connections.send(server, Got(header.layout, header.round, own), way="down")
        self._finish(operation)

    def _put(self, one: Slice, payload: memoryview) -> None:
        summed, begin = np.frombuffer(payload, dtype=np.uint8), 0
        for part in one.parts:
            self._held[part.tensor][part.start : part.stop] = summed[begin : begin + part.bytes]
            begin += part.bytes

    def _put_rows(self, one: Slice, payload: memoryview) -> None:
        touched = decode_rows(payload, one.rows, one.row_bytes)
        assert touched is not None  # checked when it arrived
        self._tables[one.parts[0].tensor].put(one.first_row, touched)

    def _operation(self, server: int, header: Taken | Sum) -> int | None:
        """Return the slice that an answer is about; None if it is not of this round."""
        known = header.operation < self._slices.counts[server]
        if known and (header.layout, header.round) == (self._number, self._round):
            return self._slices.number(server, header.operation)
        self.misplaced += 1
        return None

    def _finish(self, operation: int) -> None:
        with self._lock:
            pending = self._pending.pop(operation, None)
            if pending is None:  # a second answer
                self.misplaced += 1
                return
            pending.missing.discard(operation)
            over = not pending.missing
        if over:
            pending.done(pending.message, None)

    def _fail(self, error: TrainingError) -> None:
        with self._lock:
            self._failure = self._failure or error
            pending = {one.message: one for one in self._pending.values()}
            self._pending.clear()
        for one in pending.values():
            one.done(one.message, error)


def _row(one: Slice, place: int) -> Row:
    return Row(one.kind, one.bytes, place, len(one.parts), one.rows)  # type: ignore[arg-type]


def _fits(one: Slice, payload: memoryview) -> bool:
    """Tell whether a sum is one of this slice."""
    if one.rows:
        return decode_rows(payload, one.rows, one.row_bytes) is not None
    return len(payload) == one.bytes


def _scale(values: Sequence[Any], factor: float) -> None:
    for value in values:
        np.multiply(value, value.dtype.type(factor), out=value)


def _as_bytes(value: Any) -> Bytes:
    array = np.asarray(value)
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise TransferFailed(
            "a contribution must be contiguous and writable: its sum is written into it"
        )
    return array.reshape(-1).view(np.uint8)
