"""The process of a parameter server: one thread that reads, sums and sends until the job ends.

``python -m bytelane.runtime.ps.process --listen 127.0.0.1:0`` starts one beside a worker;
``bytelane ps serve`` is the same for users.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bytelane.errors import BytelaneError
from bytelane.runtime.ps.address import Address, parse_address, require_own, require_private
from bytelane.runtime.ps.drops import Drops
from bytelane.runtime.ps.keys import Keys, load_keys, require_zmq
from bytelane.runtime.ps.server import Server
from bytelane.runtime.ps.wire import SIDES, Wire
from bytelane.terminal import one_line, show

# How often it looks whether its parent lives and its workers are still heard.
_LOOK_MS = 500
# How soon it tries again to send to a worker that has joined on one of its connections only.
_AGAIN_MS = 20
# A server whose parent has ended goes on while a worker is heard.
_ORPHAN_S = 5.0


def serve(
    listen: str,
    *,
    keys: Path | None = None,
    plaintext: bool = False,
    parent: int | None = None,
    as_json: bool = False,
) -> None:
    """Serve one job until all of its workers have left, or SIGTERM or SIGINT arrives.

    ``parent``: the process to end with, once no worker of another process uses it any more.
    Prints a line when it is ready, and one at the end.
    """
    require_zmq()
    address = require_own(parse_address(listen))
    loaded = None if keys is None else load_keys(keys, "server")
    require_private(address, loaded, plaintext=plaintext)
    drops = Drops(_complain)
    if parent is not None:
        # Ctrl-C and batch systems signal all processes of a job. The ranks decide how that ends,
        # and may need this server to bring their weights up to date.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    with _asked_to_end() as end, contextlib.closing(Wire(address, loaded)) as wire:
        _announce(wire.address, loaded, as_json=as_json)
        _loop(wire, Server(drops), end, parent)
    _summarise(drops, as_json=as_json)


def _loop(wire: Wire, server: Server, end: "_End", parent: int | None) -> None:
    import zmq

    poller = zmq.Poller()
    wire.register(poller)
    poller.register(end.woken, zmq.POLLIN)
    clock = _Listened()
    while not end.is_asked and not server.is_over(clock.now()):
        is_orphan = parent is not None and os.getppid() != parent
        if is_orphan and not server.is_used(clock.now(), _ORPHAN_S):
            return
        poller.poll(_AGAIN_MS if wire.keeps else _LOOK_MS)
        wire.authenticate()
        for side in SIDES:
            for name, frames in wire.received(side):
                for message in server.receive(side, name, frames, clock.now()):
                    wire.send(message)
        if wire.keeps:
            wire.forget_all_but(server.takes_part)
            wire.send_kept()


class _Listened:
    """Seconds in which this process has listened: while it is stopped, workers are not silent."""

    def __init__(self) -> None:
        self._listened_s, self._looked_s = 0.0, time.monotonic()

    def now(self) -> float:
        looked_s = time.monotonic()
        self._listened_s += min(looked_s - self._looked_s, 2 * _LOOK_MS / 1000)
        self._looked_s = looked_s
        return self._listened_s


class _End:
    """Whether a signal has asked the process to end; ``woken`` wakes a poller."""

    def __init__(self) -> None:
        self.woken, self.waker = socket.socketpair()
        self.is_asked = False


@contextlib.contextmanager
def _asked_to_end() -> Iterator[_End]:
    """Let SIGTERM and SIGINT end the loop, not a message halfway."""
    end = _End()
    end.waker.setblocking(False)

    def ask(number: int, frame: object) -> None:
        end.is_asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    fd_before = signal.set_wakeup_fd(end.waker.fileno())
    try:
        yield end
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        end.woken.close()
        end.waker.close()


def _announce(address: Address, keys: Keys | None, *, as_json: bool) -> None:
    if as_json:
        ready = {"host": address.host, "up": address.port, "down": address.port + 1}
        _print(json.dumps({**ready, "encrypted": keys is not None}))
    else:
        _print(f"ready on {address} (pushes) and port {address.port + 1} (sums); Ctrl-C ends it")


def _summarise(drops: Drops, *, as_json: bool) -> None:
    if as_json:
        _print(json.dumps({"dropped": dict(drops.counts)}))
    elif drops.counts:
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in drops.counts.most_common())
        _print(f"ended; dropped {drops.counts.total():,} messages ({reasons})")


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        show(line, flush=True)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        show(f"bytelane: {one_line(text)}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve as the arguments say; a mistake is one sentence and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m bytelane.runtime.ps.process")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--keys", type=Path, metavar="FOLDER")
    parser.add_argument("--plaintext", action="store_true")
    parser.add_argument("--parent", type=int, metavar="PID")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        serve(
            given.listen,
            keys=given.keys,
            plaintext=given.plaintext,
            parent=given.parent,
            as_json=given.json,
        )
    except BytelaneError as error:
        _complain(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
