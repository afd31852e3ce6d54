"""A worker's connections to its parameter servers: one I/O thread owns all sockets.

Other threads post messages to a list and wake the thread up through a pair of sockets; what
arrives is reported to listeners in the I/O thread. To every server there are two connections, *up*
for pushes and *down* for sums, so that acknowledgements do not queue behind bulk.

ZeroMQ connects again by itself, but what was on its way is lost without a word, and a push that
was lost would be waited for in vain. So a connection that breaks is the end; and because a frozen
server keeps its connections, each is asked for a sign of life once per second.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bytelane import __version__
from bytelane.errors import (
    NotSupported,
    ServerLost,
    TrainingError,
    TransferFailed,
    TransferTimeout,
)
from bytelane.runtime.ps import frames
from bytelane.runtime.ps.address import Address, require_private
from bytelane.runtime.ps.dealers import WAYS, Alarm, Connection, Dealers, Way
from bytelane.runtime.ps.keys import Keys, require_zmq

Waiting = Callable[[float, str], None]
Listener = Callable[[int, Any, memoryview], None]
"""Called with the number of the server, a header, and its payload; must not wait."""

SILENCE_S = 10.0
"""A server that has left as many signs of life unanswered as fit into this time is lost."""
# A Leave or the last acknowledgement may still be on its way when the sockets are closed.
_LINGER_MS = 500
_STEP_S = 0.25


class Member(NamedTuple):
    """Which job this worker takes part in, and as which rank."""

    job: str
    rank: int
    world: int


class _Post(NamedTuple):
    to: Connection
    frames: Sequence[frames.Buffer]


class Connections:
    """Sends to all servers and reports what they answer; all methods may be called anywhere."""

    def __init__(
        self,
        addresses: Sequence[Address],
        member: Member,
        *,
        keys: Keys | None = None,
        plaintext: bool = False,
        silence_s: float = SILENCE_S,
    ) -> None:
        require_zmq()
        for address in addresses:
            require_private(address, keys, plaintext=plaintext)
        self.addresses = tuple(addresses)
        self.member = member
        self.failure: TrainingError | None = None
        """Why nothing can be sent any more."""
        self.malformed = 0
        """How many messages of servers could not be used."""
        self._keys = keys
        self._silence_s = silence_s
        self._posts: deque[_Post] = deque()
        self._alarm = Alarm()
        self._changed = threading.Condition()
        self._joined: set[Connection] = set()
        self._unanswered = [0] * len(self.addresses)
        self._beats = 0
        self._leaving = self._closing = False
        self._listeners: dict[type, Listener] = {}
        self._on_failure: dict[str, Callable[[TrainingError], None]] = {}
        self._thread: threading.Thread | None = None

    # --- for any thread ------------------------------------------------------------------------

    def join(self, timeout_s: float, waiting: Waiting = lambda waited_s, name: None) -> None:
        """Connect, and return when every server has let this worker take part.

        ``waiting`` is called again and again with the name of a server that has not answered.
        """
        dealers = Dealers(self.addresses, self.member.rank, self._keys, self._alarm)
        self._thread = threading.Thread(
            target=self._run, args=(dealers,), name="bytelane-ps", daemon=True
        )
        self._thread.start()
        for server in range(len(self.addresses)):
            for way in WAYS:
                self.send(server, self._join_message(server), way=way)
        wanted = {Connection(s, way) for s in range(len(self.addresses)) for way in WAYS}
        late = self._await(wanted, timeout_s, waiting)
        if late:
            name, wrong = self.name(late[0].server), "address or keys" if self._keys else "address"
            self.fail(
                TransferTimeout(
                    f"{name} did not answer within {timeout_s:g} s; start it, or correct its "
                    f"{wrong}"
                )
            )
        if self.failure is not None:
            raise self.failure

    def _await(
        self, wanted: set[Connection], timeout_s: float, waiting: Waiting
    ) -> list[Connection]:
        """Return the connections on which nobody has answered in time."""
        began_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - began_s
            with self._changed:
                left_s = min(_STEP_S, max(0.0, timeout_s - waited_s))
                self._changed.wait_for(lambda: self.failure or wanted <= self._joined, left_s)
                late = sorted(wanted - self._joined)
            if not late or self.failure or waited_s >= timeout_s:
                return late
            waiting(waited_s, self.name(late[0].server))

    def send(
        self,
        server: int,
        header: frames.ToServer,
        payload: frames.Buffer | None = None,
        *,
        way: Way = "up",
    ) -> None:
        """Send a message; its payload is not copied, and must not change until it is answered."""
        self._posts.append(_Post(Connection(server, way), frames.encode(header, payload)))
        self._wake_up()

    def listen(self, kind: type, listener: Listener) -> None:
        """Report headers of this type to a listener, instead of the one before."""
        self._listeners[kind] = listener

    def on_failure(self, what: str, callback: Callable[[TrainingError], None]) -> None:
        """Call this when a server is lost, instead of the one before; at once, if one is."""
        with self._changed:
            self._on_failure[what] = callback
            failure = self.failure
        if failure is not None:
            callback(failure)

    def fail(self, error: TrainingError) -> None:
        """Refuse everything from now on."""
        with self._changed:
            if self.failure is not None:
                return
            self.failure = error
            callbacks = list(self._on_failure.values())
            self._changed.notify_all()
        for callback in callbacks:  # not under the lock: they may take others
            callback(error)
        self._wake_up()

    def close(self, *, leave: bool = True) -> None:
        """Leave the job, and end the I/O thread."""
        self._leaving = True  # the last one to leave may see the servers end
        if leave and self.failure is None:
            for server in range(len(self.addresses)):
                self.send(server, frames.Leave())
        self._closing = True
        self._wake_up()
        if self._thread is None:
            self._alarm.close()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def name(self, server: int) -> str:
        """Return a server's name for messages."""
        return f"parameter server {server} at {self.addresses[server]}"

    # --- the I/O thread ------------------------------------------------------------------------

    def _run(self, dealers: Dealers) -> None:
        try:
            beat_at = 0.0
            while not self._closing and self.failure is None:
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + frames.BEAT_S
                    self._beat()
                self._deliver(dealers)
                came = dealers.poll(beat_at - now)
                for connection in came.readable:
                    for parts in dealers.received(connection):
                        self._receive(connection, parts)
                        self._deliver(dealers)  # what the listeners have answered
                for connection in came.broken:
                    self._lose(connection)
            if self.failure is not None:
                # The servers that are left need not wait for this worker's silence.
                self._posts.clear()
                for connection in self._joined:
                    if connection.way == "up":
                        self._posts.append(_Post(connection, frames.encode(frames.Leave())))
            self._deliver(dealers)
        except Exception as error:  # any: else it would be lost in this thread
            self.fail(TransferFailed(f"the connections to the parameter servers broke: {error}"))
        finally:
            dealers.close(_LINGER_MS)
            self._alarm.close()

    def _deliver(self, dealers: Dealers) -> None:
        """Send what was posted."""
        while self._posts:
            dealers.send(*self._posts.popleft())

    def _beat(self) -> None:
        """Ask every server for a sign of life.

        Counted, not timed: a worker that was stopped itself must not find all servers silent.
        """
        self._beats += 1
        for server in range(len(self.addresses)):
            up = Connection(server, "up")
            if up not in self._joined:
                continue  # join() has a limit of its own
            silent_s = self._unanswered[server] * frames.BEAT_S
            if silent_s > self._silence_s:
                self.fail(ServerLost(f"{self.name(server)} has not answered for {silent_s:.0f} s"))
            self._unanswered[server] += 1
            self._posts.append(_Post(up, frames.encode(frames.Beat(self._beats))))

    def _lose(self, connection: Connection) -> None:
        """Give up, unless it was not yet in use: then it is tried again until join() gives up."""
        if connection in self._joined and not self._leaving:
            name = self.name(connection.server)
            self.fail(
                ServerLost(f"the connection to {name} broke: it has ended, or the network has")
            )

    def _receive(self, connection: Connection, parts: Sequence[Any]) -> None:
        """Report a message."""
        server = connection.server
        self._unanswered[server] = 0
        message = frames.decode(parts)
        if isinstance(message, frames.Malformed):
            self.malformed += 1
            return
        header, payload = message
        if isinstance(header, frames.Joined):
            with self._changed:
                self._joined.add(connection)
                self._changed.notify_all()
        elif isinstance(header, frames.Refused):
            self.fail(NotSupported(f"{self.name(server)} refuses this worker: {header.reason}"))
        elif (listener := self._listeners.get(type(header))) is not None:
            listener(server, header, payload)
        elif not isinstance(header, frames.Beat):
            self.malformed += 1

    def _wake_up(self) -> None:
        if threading.current_thread() is not self._thread:  # it sends before it sleeps again
            self._alarm.ring()

    def _join_message(self, server: int) -> frames.Join:
        job, rank, world = self.member
        count = len(self.addresses)
        return frames.Join(frames.PROTOCOL, __version__, job, rank, world, server, count)
