"""Small exchanges between all workers through server 0; they replace a gloo group for agreeing."""

import threading
import time
from collections.abc import Callable

from bytelane.errors import TrainingError, TransferFailed, TransferTimeout
from bytelane.runtime.ps.connections import Connections
from bytelane.runtime.ps.frames import Heard, Malformed, Say, decode_heard

_SERVER = 0
_STEP_S = 0.25


class PsControl:
    """All ranks say something, one exchange after the other, and hear what all have said."""

    def __init__(self, connections: Connections, timeout_s: float) -> None:
        self.rank, self.size = connections.member.rank, connections.member.world
        self._connections = connections
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._numbers: dict[str, int] = {}
        self._heard: dict[tuple[str, int], list[bytes] | Malformed] = {}
        self._failure: TrainingError | None = None
        connections.listen(Heard, self._hear)
        connections.on_failure("control", self._fail)

    def exchange(
        self, mine: bytes, page: str = "", waiting: Callable[[float], None] = lambda waited_s: None
    ) -> list[bytes]:
        """Return what every rank has said in this exchange, by rank.

        ``waiting`` is called several times per second until all have, and may raise.

        Exchanges of one page are numbered by the calls, so all ranks make the same ones in the
        same order; those of another page do not disturb them.
        """
        number = self._numbers[page] = self._numbers.get(page, -1) + 1
        key = page, number
        self._connections.send(_SERVER, Say(page, number), mine)
        self._await(key, waiting)
        with self._changed:
            said = self._heard.pop(key, None)
            if said is None:
                assert self._failure is not None
                raise self._failure
        if isinstance(said, Malformed) or len(said) != self.size:
            raise TransferFailed(f"{self._connections.name(_SERVER)} has answered nonsense")
        return said

    def _await(self, key: tuple[str, int], waiting: Callable[[float], None]) -> None:
        began_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - began_s
            with self._changed:
                left_s = min(_STEP_S, max(0.0, self._timeout_s - waited_s))
                if self._changed.wait_for(
                    lambda: key in self._heard or self._failure is not None, left_s
                ):
                    return
            if waited_s >= self._timeout_s:
                raise TransferTimeout(
                    f"{self._connections.name(_SERVER)} has not heard from every rank within "
                    f"{self._timeout_s:g} s"
                )
            waiting(waited_s)

    def _hear(self, server: int, header: Heard, payload: memoryview) -> None:
        if server != _SERVER or header.number > self._numbers.get(header.page, -1):
            return  # nobody has asked
        with self._changed:
            self._heard[header.page, header.number] = decode_heard(payload)
            self._changed.notify_all()

    def _fail(self, error: TrainingError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
