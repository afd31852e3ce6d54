"""Send and receive background traffic on one host: ``python -m bytelane.lab.flows WORKLOAD``.

Every flow is a TCP connection of its own. It begins with the attempt to connect and ends when its
last byte has arrived; all hosts are on one machine and share one clock. The host prints BEGUN, then
its flows as JSON when they have ended or when it is asked to stop, and receives until then.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import struct
import sys
import time

import msgspec

from bytelane.cluster import Arrival
from bytelane.lab.agents import BEGUN
from bytelane.lab.environment import HOSTS
from bytelane.lab.links import TOS
from bytelane.lab.workload import DRAIN_S, FlowRecord, Workload

PORT = 5100
SIZE = struct.Struct("!Q")
MOMENT = struct.Struct("!d")
PIECE = memoryview(bytes(1 << 18))
CALL_AGAIN_S = 0.02


async def play(workload: Workload, host: int, addresses: list[str]) -> None:
    """Send and receive until the end of the workload, or until asked to stop."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    records: list[FlowRecord] = []
    stopping = asyncio.create_task(stopped.wait())
    receiving = asyncio.create_task(_receive(addresses[host], TOS[workload.band]))
    sending = asyncio.create_task(_send(workload, host, addresses, records))
    done, _ = await asyncio.wait(
        {stopping, receiving, sending}, return_when=asyncio.FIRST_COMPLETED
    )
    for task in done:
        task.result()  # or its error
    print(msgspec.json.encode(records).decode(), flush=True)
    await stopping  # other hosts may still send to this one


async def _send(
    workload: Workload, host: int, addresses: list[str], records: list[FlowRecord]
) -> None:
    """Begin flows at their times; then wait for those under way."""
    for address in addresses:
        await _until_it_listens(address)
    print(BEGUN, flush=True)
    began = time.monotonic()
    flows = set()
    for arrival in workload.arrivals(host, len(addresses)):
        await asyncio.sleep(began + arrival.at_s - time.monotonic())
        records.append(FlowRecord(arrival.at_s, arrival.bytes))
        there = (addresses[arrival.destination], PORT)
        flow = asyncio.create_task(_give(arrival, there, TOS[workload.band], records[-1]))
        flows.add(flow)
        flow.add_done_callback(flows.discard)
    if flows:
        await asyncio.wait(flows, timeout=DRAIN_S)


async def _give(arrival: Arrival, there: tuple[str, int], tos: int, record: FlowRecord) -> None:
    """Send one flow, and record how long it took."""
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    with _socket(tos) as connection, contextlib.suppress(OSError, EOFError):  # it did not end
        await loop.sock_connect(connection, there)
        await loop.sock_sendall(connection, SIZE.pack(arrival.bytes))
        left = arrival.bytes
        while left > 0:
            await loop.sock_sendall(connection, PIECE[: min(left, len(PIECE))])
            left -= len(PIECE)
        (ended,) = MOMENT.unpack(await _exactly(connection, MOMENT.size))
        record.took_s = ended - began


async def _receive(address: str, tos: int) -> None:
    """Receive the flows of all other hosts."""
    loop = asyncio.get_running_loop()
    with _socket(tos) as server:  # accepted sockets inherit the TOS, for their acknowledgements
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, PORT))
        server.listen(1024)
        async with asyncio.TaskGroup() as flows:
            while True:
                connection, _ = await loop.sock_accept(server)
                flows.create_task(_take(connection))


async def _take(connection: socket.socket) -> None:
    """Receive one flow, and reply with the time at which its last byte arrived."""
    loop = asyncio.get_running_loop()
    buffer = bytearray(len(PIECE))
    with connection, contextlib.suppress(OSError, EOFError):  # the sender has given up
        (left,) = SIZE.unpack(await _exactly(connection, SIZE.size))
        while left > 0:
            got = await loop.sock_recv_into(
                connection, memoryview(buffer)[: min(left, len(buffer))]
            )
            if not got:
                raise EOFError
            left -= got
        await loop.sock_sendall(connection, MOMENT.pack(time.monotonic()))


async def _exactly(connection: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < count:
        piece = await loop.sock_recv(connection, count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found


async def _until_it_listens(address: str) -> None:
    while True:
        with _socket(0) as connection:
            try:
                return await asyncio.get_running_loop().sock_connect(connection, (address, PORT))
            except OSError:
                await asyncio.sleep(CALL_AGAIN_S)


def _socket(tos: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    return made


def main() -> None:
    """Run the host that the environment and the arguments name."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # flows pile up when they are starved
    workload = msgspec.json.decode(sys.argv[1], type=Workload)
    addresses = os.environ[HOSTS].split(",")
    asyncio.run(play(workload, int(os.environ["RANK"]), addresses))


if __name__ == "__main__":
    main()
