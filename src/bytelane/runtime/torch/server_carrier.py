"""Parameter servers as carrier: a server process beside each rank, or servers that run already."""

import contextlib
import os
import secrets
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import torch
import torch.distributed as dist

import bytelane
from bytelane.cluster import Link, Sync
from bytelane.core import CreditWindow, Element, LocalDecisions, Parts, Plan, Policy, Stage
from bytelane.errors import (
    NotSupported,
    PlanMismatch,
    ServerLost,
    TrainingError,
    TransferFailed,
)
from bytelane.foreign.torch import multiply_all
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.liveness.address import reachable_address
from bytelane.runtime.ps.address import Address, parse_address, require_private
from bytelane.runtime.ps.connections import Connections, Member
from bytelane.runtime.ps.control import PsControl
from bytelane.runtime.ps.decisions import ServerDecisions
from bytelane.runtime.ps.keys import Keys, load_keys
from bytelane.runtime.ps.shards import Shards
from bytelane.runtime.ps.slices import MOST_BYTES, Slices
from bytelane.runtime.ps.sparse_rows import expected_bytes
from bytelane.runtime.ps.transport import PsTransport, Served
from bytelane.runtime.sync import Done, Engine, Message, Transport
from bytelane.runtime.sync.engine import PATIENCE_S
from bytelane.runtime.torch.carrier import elements_of, require_tensors
from bytelane.runtime.torch.parameters import TrainedParameters
from bytelane.runtime.torch.peers import Peers
from bytelane.runtime.torch.server_control import ServerControl
from bytelane.runtime.torch.transport import in_memory_order
from bytelane.terminal import announce

# Runs of a tensor that one server owns; large tensors are spread over all servers.
SPREAD_BYTES = 2**19
# Before anything is measured: parts of this size, a few of them in flight per server.
FIRST_PART_BYTES = 2**19
FIRST_CREDIT_BYTES = 2**21
_STARTING_S = 60.0
_JOINING_S = 60.0
_DRAINING_S = 60.0
_ENDING_S = 1.0


class ServerSettings(NamedTuple):
    """Which servers a model is trained with."""

    addresses: tuple[str, ...] = ()
    """HOST:PORT of each; empty: a process beside every rank."""
    keys: Path | None = None
    """Folder with the keys of ``bytelane ps keygen``."""
    plaintext: bool = False


class ServerCarrier:
    """Pushes and pulls; the ranks agree through the servers, too."""

    sync: Sync = "ps"

    def __init__(self, peers: Peers, settings: ServerSettings, timeout_s: float) -> None:
        self.peers = peers
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: Connections | None = None
        self._engine: Engine | None = None
        try:
            self._open(settings, timeout_s)
        except BaseException as error:
            self.leave()
            peers.report_failure(f"{type(error).__name__}: {error}")
            raise

    def _open(self, settings: ServerSettings, timeout_s: float) -> None:
        keys = None if settings.keys is None else load_keys(settings.keys, "worker")
        job, addresses = self._find_servers(settings, keys, timeout_s)
        member = Member(job, dist.get_rank(), dist.get_world_size())
        self._connections = Connections(addresses, member, keys=keys, plaintext=settings.plaintext)
        self.peers.tell(self.end)
        self._connections.join(min(timeout_s, _JOINING_S), self._wait_for_server())
        self.control = ServerControl(PsControl(self._connections, timeout_s), self.peers)

    def _find_servers(
        self, settings: ServerSettings, keys: Keys | None, timeout_s: float
    ) -> tuple[str, tuple[Address, ...]]:
        """Return the name of this job, and the addresses of its servers: the same on all ranks."""
        words = self._exchange("job", [secrets.token_hex(8), _this_host()], timeout_s)
        job, addresses = words[0][0], settings.addresses
        if not addresses:
            hosts = {host for _, host in words}
            own = self._start_server(settings, keys, on_loopback=len(hosts) == 1)
            said = self._exchange("servers", [str(own)], timeout_s)
            addresses = tuple(address for (address,) in said)
        return job, tuple(map(parse_address, addresses))

    def _exchange(self, page: str, mine: list[str], timeout_s: float) -> list[list[str]]:
        said = self.peers.exchange(
            f"{self.peers.page}/{page}", msgspec.json.encode(mine), timeout_s
        )
        return [msgspec.json.decode(word, type=list[str]) for word in said]

    def _start_server(
        self, settings: ServerSettings, keys: Keys | None, *, on_loopback: bool
    ) -> Address:
        """Start the server beside this rank; it ends when all ranks have left."""
        host = "127.0.0.1" if on_loopback else reachable_address(os.environ.get("MASTER_ADDR"))
        listen = Address(host, 0)
        require_private(listen, keys, plaintext=settings.plaintext)
        words = ["--json", "--listen", str(listen), "--parent", str(os.getpid())]
        if settings.keys is not None:
            words += ["--keys", str(settings.keys.absolute())]
        if settings.plaintext:
            words.append("--plaintext")
        self._process = start_server_process(words)
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(_STARTING_S) else b""
        if not line:
            raise ServerLost("the parameter server beside this rank did not start")
        found = msgspec.json.decode(line)
        return Address(found["host"], found["up"])

    def _wait_for_server(self) -> Callable[[float, str], None]:
        told_s = PATIENCE_S

        def look(waited_s: float, name: str) -> None:
            nonlocal told_s
            if loss := self.peers.loss():
                raise loss
            if waited_s >= told_s:
                told_s *= 2
                announce(f"waiting for {name} for {waited_s:.0f} s; it has not answered")

        return look

    # --- plans ---------------------------------------------------------------------------------

    def first_plan(self, trained: TrainedParameters, version: int) -> Plan:
        names = zip(trained.names, trained.tensor_bytes, strict=True)
        tensors = tuple(Tensor(name, size, (0,)) for name, size in names)
        job = Job("not measured yet", (Layer("all", 0.0, 0.0),), tensors)
        equal, window = (0,) * len(tensors), CreditWindow(FIRST_CREDIT_BYTES)
        stages = (Stage("push", equal, window), Stage("pull", equal, window))
        policy = Policy("plain parts", stages, barrier=True, cutting=Parts(FIRST_PART_BYTES))
        return self.fit(Plan.deciding_locally(policy, job, version), trained)

    def fit(self, plan: Plan, trained: TrainedParameters) -> Plan:
        require_tensors(plan, trained)
        sliced = self._slices(plan, trained).plan(
            plan.policy, plan.window, barrier=plan.barrier, version=plan.version
        )
        return msgspec.structs.replace(sliced, local=plan.local)

    def carry(self, plan: Plan, trained: TrainedParameters) -> Transport:
        slices = self._slices(plan, trained)
        pull = _local(plan).policy.stages[1]
        places = [min(pull.priority[t] for t in one.tensors) for one in slices.all]
        numbered = {priority: place for place, priority in enumerate(sorted(set(places)))}
        served = Served(
            slices,
            number=plan.version,
            places=[numbered[place] for place in places],
            credit_bytes=pull.window.credit_bytes,
        )
        assert self._connections is not None
        return _CountedTransport(self._connections, served, self.peers)

    def make_engine(
        self, plan: Plan, transport: Transport, names: tuple[str, ...], **settings: Any
    ) -> Engine:
        assert isinstance(transport, _CountedTransport)
        policy, job = _local(plan).policy, _local(plan).job
        decisions = ServerDecisions(policy, job, transport.slices, transport.table_bytes)
        operations = transport.slices.operations(policy, names)
        self._engine = Engine(decisions, operations, transport, **settings)
        return self._engine

    def _slices(self, plan: Plan, trained: TrainedParameters) -> Slices:
        local, elements, tables = _local(plan), elements_of(trained), trained.tables
        sizes = [tensor.bytes for tensor in local.job.tensors]
        for tensor, row_bytes in tables.items():
            sizes[tensor] = expected_bytes(sizes[tensor], row_bytes, MOST_BYTES)
        assert self._connections is not None
        shards = Shards.spread(sizes, len(self._connections.addresses), SPREAD_BYTES)
        kinds = [Element(kind.removeprefix("torch."), size) for kind, size in elements]
        return Slices.of(local.policy, local.job, shards, kinds, tables)

    def measure(self, probe: Callable[[dist.ProcessGroup], Link]) -> NoReturn:
        raise NotSupported("the network is not measured with parameter servers; name a policy")

    # --- the end -------------------------------------------------------------------------------

    def end(self, error: TrainingError) -> None:
        """Make all operations in flight fail: a rank is lost. Called from any thread."""
        if self._connections is not None:
            self._connections.fail(error)

    def break_all(self) -> None:
        self.end(TransferFailed("this rank has given up"))

    def drop(self) -> None:
        """Close the connections when nothing is in flight: other ranks may still need a push."""
        threading.Thread(target=self._drain_and_leave, name="bytelane-drop", daemon=True).start()

    def _drain_and_leave(self) -> None:
        if self._engine is not None:
            self._engine.drain(_DRAINING_S)
        self.leave()

    def leave(self) -> None:
        if self._connections is not None:
            self._connections.close()
        if self._process is not None:
            # It ends when all ranks have left; one that still trains may need it longer.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_S)


class _CountedTransport(PsTransport):
    """Torch's gradients on the way to servers; peers hear how many operations are launched."""

    def __init__(self, connections: Connections, served: Served, peers: Peers) -> None:
        super().__init__(connections, served, scale=_scale, as_bytes=_as_bytes)
        self.slices = served.slices
        self._count = peers.count

    def start(self, message: Message, done: Done) -> None:
        for _ in message:  # what is joined differs between ranks, how many there are does not
            self._count()
        super().start(message, done)


def start_server_process(words: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a server that outlives signals to this rank, with this very package."""
    package = str(Path(bytelane.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    # Not the current folder first: a file of the user's would hide a module of Python's.
    command = [sys.executable, "-P", "-m", "bytelane.runtime.ps.process", *words]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )


def _this_host() -> str:
    """Name this host and its network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def _scale(gradients: Sequence[torch.Tensor], factor: float) -> None:
    multiply_all([_row(gradient) for gradient in gradients], factor)


def _as_bytes(gradient: torch.Tensor) -> Any:
    return _row(gradient).view(torch.uint8).numpy()


def _row(gradient: torch.Tensor) -> torch.Tensor:
    row = in_memory_order(gradient)
    assert row is not None
    return row


def _local(plan: Plan) -> LocalDecisions:
    if plan.local is None:
        raise PlanMismatch("a planner for all-reduce was given; with servers every rank decides")
    return plan.local
