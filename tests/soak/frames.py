"""Attack a server with malformed messages: ``python tests/soak/frames.py --messages 1000000``.

Half are raw bytes at its TCP ports, from strangers without a key. Half are mutations of valid
frames inside an authenticated connection: of a stranger, and of a worker that takes part. After
every batch two workers let the server sum, and compare. ``--seed`` makes the same messages again.
"""

import argparse
import random
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from bytelane.runtime.ps.frames import (
    Beat,
    Got,
    Header,
    Join,
    Layout,
    Leave,
    Message,
    Push,
    Row,
    Say,
    decode,
    encode,
    encode_table,
)
from bytelane.runtime.ps.keys import keygen, load_keys
from bytelane.runtime.ps.members import Side
from ps_raw_client import RawWorker, ServerProcess, a_server, workers

BATCH = 2000
PER_CONNECTION = 50
LAYOUT = 1  # of the honest workers
ROWS = [Row("float32", 4 * 1000, 1), Row("int64", 8 * 20, 0)]
# What a connection of ZeroMQ's begins with; the rest of the handshake is noise.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + b"\x00" + bytes(31)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    began_s, sent = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        keygen(path)
        keys = load_keys(path, "worker")
        with a_server("--keys", str(path)) as server, workers(server, 2, keys) as team:
            stranger = RawWorker(server.port, 5, keys=keys)
            for worker in team:
                worker.layout(ROWS)
            first_kib = 0
            for number in range(-(-asked.messages // BATCH)):
                shout(server.port, chance, BATCH // 2)
                whisper(chance.choice([stranger, team[1]]), chance, BATCH // 2)
                sent += BATCH
                require_sums(team, number)
                first_kib = first_kib or memory_kib(server)
                if number % 50 == 49:
                    print(f"{sent} messages, {memory_kib(server)} KiB", flush=True)
            last_kib = memory_kib(server)
            stranger.close()
            for worker in team:
                worker.leave()
            dropped = server.end()
    took_s = time.monotonic() - began_s
    for reason, count in sorted(dropped.items()):
        print(f"{count:8} {reason}")
    print(f"{sent} messages in {took_s:.0f} s, seed {asked.seed}; the server lives, all sums exact")
    print(f"memory of the server: {first_kib} KiB after the first batch, {last_kib} at the end")
    if last_kib > 1.2 * first_kib:
        sys.exit("the server's memory has grown")


def shout(port: int, chance: random.Random, count: int) -> None:
    """Send raw bytes to either port."""
    for _ in range(count // PER_CONNECTION):
        with socket.create_connection(("127.0.0.1", port + chance.randrange(2))) as stranger:
            stranger.settimeout(5)
            try:
                if chance.random() < 0.5:
                    stranger.sendall(GREETING)
                for _ in range(PER_CONNECTION):
                    stranger.sendall(chance.randbytes(chance.randint(1, 200)))
            except OSError:
                pass  # the server has closed the connection: it was right


def whisper(sender: RawWorker, chance: random.Random, count: int) -> None:
    """Send mutations of valid frames inside an authenticated connection."""
    valid: list[tuple[Header, bytes | None]] = [
        (Push(9, 0, 0, b"\1"), bytes(4000)),
        (Push(9, 7, 1, b"\1\0"), bytes(160)),
        (Got(9, 0, 0), None),
        (Say("page", 1), b"x" * 100),
        (Layout(2**40, "d", 8), encode_table(ROWS)),
        (sender.asks(job="another"), None),
    ]
    sent = 0
    while sent < count:
        frames = [bytes(frame) for frame in encode(*chance.choice(valid))]
        mutate(frames, chance)
        if not is_harmless(frames):
            continue
        side: Side = chance.choice(("up", "down"))
        sender.send_frames(side, frames)
        sent += 1


def mutate(frames: list[bytes], chance: random.Random) -> None:
    changed = bytearray(frames[0])
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    frames[0] = bytes(changed)
    what = chance.random()
    if what < 0.2:
        frames[0] = frames[0][: chance.randrange(len(frames[0]))]
    elif what < 0.4:
        frames.append(chance.randbytes(chance.randint(0, 5000)))
    elif what < 0.5:
        frames.insert(0, chance.randbytes(3))


def is_harmless(frames: list[bytes]) -> bool:
    """Whether it is not by chance what the sender may say, which would change the sums."""
    message = decode(frames)
    if not isinstance(message, Message):
        return True
    header = message.header
    if isinstance(header, Leave | Beat | Join | Say | Layout):
        return False
    return getattr(header, "layout", getattr(header, "number", LAYOUT)) != LAYOUT


def require_sums(team: list[RawWorker], number: int) -> None:
    values = [
        [np.arange(row.bytes // np.dtype(row.kind).itemsize).astype(row.kind) * (rank + number)
         for row in ROWS]
        for rank in range(len(team))
    ]  # fmt: skip
    for rank, worker in enumerate(team):
        for operation, value in enumerate(values[rank]):
            worker.push(number, operation, value.tobytes())
    for worker in team:
        for _ in ROWS:
            header, payload = worker.take_sum()
            expected = values[0][header.operation] + values[1][header.operation]
            assert payload == expected.tobytes(), f"a sum is wrong in round {number}"


def memory_kib(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


if __name__ == "__main__":
    main()
