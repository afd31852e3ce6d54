"""Emulate a cluster on one machine: hosts, each with a link of a given rate to one switch."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, get_args

from bytelane.cluster.sizes import WEB_SEARCH, Sizes
from bytelane.errors import InputError, LabError
from bytelane.lab.check import SECONDS as CHECK_S
from bytelane.lab.check import Hop, Share, check_priority, check_rates
from bytelane.lab.control import Control
from bytelane.lab.environment import rank_environment
from bytelane.lab.links import DEVICE, MOST_HOSTS, Band, Priority, address
from bytelane.lab.messages import Blueprint, Mode, SetRate, Start
from bytelane.lab.run import Output, Run, print_line, require_timeout
from bytelane.lab.schedule import Step, following
from bytelane.lab.traffic import Traffic
from bytelane.lab.workload import Workload
from bytelane.units import format_rate, parse_rate
from bytelane.values import as_number, as_whole, shown

# Below, a bucket of one packet of 64 KiB would take more than 1 s.
LEAST_RATE = parse_rate("500kbit")
# Faster than any machine copies; above, a bucket would overflow tc's 32 bits.
MOST_RATE = parse_rate("1000Gbit")
GRACE_S = 5.0
FIRST_PORT = 29500


class Lab:
    """``with Lab(4, "500Mbit") as lab: lab.run(["python", "train.py"])``.

    Mode ``namespace`` has real links, queues and priorities; it needs root, or a kernel that lets
    an ordinary user have namespaces. Mode ``pacing`` needs no privilege and limits each
    *connection*.
    ``auto`` takes the first where it works; :attr:`mode` says which it was, :attr:`reason` why.

    ``priority`` has three bands by type of service. ``pfifo_fast``: where hosts send. ``htb``: also
    where the switch sends. Priority is strict: a lower band gets nothing while a higher one sends.

    All processes and links end with the block, and also when this process is killed.
    """

    def __init__(
        self,
        workers: int,
        rate: str | float,
        *,
        priority: Priority | None = None,
        mode: Mode | Literal["auto"] = "auto",
    ) -> None:
        if not 2 <= as_whole(workers, "workers") <= MOST_HOSTS:
            raise InputError(f"{shown(workers)} workers are not possible; use 2 to {MOST_HOSTS}")
        if mode not in ("auto", *get_args(Mode)):
            raise InputError(f"mode {mode!r} is not one of auto, namespace, pacing")
        if priority not in (None, *get_args(Priority)):
            raise InputError(f"priority {priority!r} is not one of pfifo_fast, htb")
        if mode == "pacing" and priority:
            raise InputError("pacing has no queues, so no priorities; use mode namespace")
        self.workers = workers
        self.priority = priority
        self.mode: Mode = "pacing" if mode == "pacing" else "namespace"
        self.reason = ""
        """Why there are no namespaces, where auto has chosen pacing."""
        self._rate = _bytes_per_second(rate)
        self.rates = [self._rate] * workers
        """Of each host's link now, in bytes per second."""
        self._may_pace = mode == "auto" and priority is None
        self._control: Control | None = None
        self._runs: list[Run] = []

    def __enter__(self) -> Self:
        if self._control:
            raise LabError("this lab is already open")
        if not sys.platform.startswith("linux"):
            raise LabError("the laboratory needs Linux")
        self.rates = [self._rate] * self.workers
        try:
            self._control = Control(self._blueprint())
        except LabError as error:
            if self.mode == "pacing":
                raise
            self.reason = f"no network namespaces here: {error}"
            if not self._may_pace:
                raise LabError(f"{self.reason}; bytelane doctor tells more") from None
            self.mode = "pacing"
            self._control = Control(self._blueprint())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for run in self._runs:
                if not run.is_stopping:  # or the user pressed Ctrl-C a second time
                    run.stop()
        finally:
            self._opened().close()
            self._control = None
            for run in self._runs:
                run.stop()
            self._runs.clear()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the hosts. In mode pacing all of them are this machine."""
        if self.mode == "namespace":
            return tuple(map(address, range(self.workers)))
        # By process id, so that several labs can listen on the same ports.
        high, low = divmod(os.getpid() % 2**16, 2**8)
        return tuple(f"127.{high}.{low}.{host + 1}" for host in range(self.workers))

    def set_rate(self, rate: str | float, host: int | None = None) -> None:
        """Change a host's link, or all of them, in both directions, while they are in use."""
        new = _bytes_per_second(rate)
        if host is not None and not 0 <= host < self.workers:
            raise InputError(f"there is no host {host}; hosts are 0 to {self.workers - 1}")
        for one in range(self.workers) if host is None else [host]:
            self._opened().ask(SetRate(one, new))
            self.rates[one] = new

    def start(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str] | None = None,
        output: Output = print_line,
        grace_s: float = GRACE_S,
    ) -> Run:
        """Start a command in every host, with torchrun's variables and those given.

        ``output`` is called with rank, stream and line, in another thread.
        """
        if not command:
            raise InputError("there is no command to start")
        control = self._opened()
        port = FIRST_PORT + len(self._runs) % 1000 if self.mode == "namespace" else _free_port()
        device = DEVICE if self.mode == "namespace" else "lo"
        starts = [
            Start(
                rank,
                [os.fsencode(word) for word in command],
                _encoded(rank_environment(rank, self.addresses, port, device, environment)),
                os.fsencode(os.getcwd()),
            )
            for rank in range(self.workers)
        ]
        run = Run(control, output, grace_s)
        self._runs.append(run)  # first, so that any interrupt from here on stops it
        run.start(starts)
        return run

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str] | None = None,
        output: Output = print_line,
        grace_s: float = GRACE_S,
        timeout_s: float | None = None,
        schedule: Sequence[Step] = (),
    ) -> int:
        """Run a command in every host to its end; return the exit code of the first that failed."""
        if timeout_s is not None:
            require_timeout(timeout_s)
        with following(schedule, self.set_rate):
            run = self.start(command, environment=environment, output=output, grace_s=grace_s)
            return run.wait(timeout_s)

    def check(self, seconds: float = CHECK_S) -> list[Hop]:
        """Measure every link in both directions at once; ``Hop.is_right`` is the verdict."""
        return check_rates(self, seconds)

    def check_priority(self, seconds: float = CHECK_S) -> list[Share]:
        """Measure the share of a transfer at high priority beside one at low priority."""
        return check_priority(self, seconds)

    def traffic(
        self,
        load: float | None = None,
        *,
        flows_per_s: float | None = None,
        sizes: Sizes = WEB_SEARCH,
        band: Band = "normal",
        seconds: float | None = None,
        seed: int = 1,
    ) -> Traffic:
        """Start background flows; return when all hosts have begun.

        Give either ``load``, a share of a link's rate, or ``flows_per_s``, per host.
        """
        flows = self.workload(
            load, flows_per_s=flows_per_s, sizes=sizes, band=band, seconds=seconds, seed=seed
        )
        return Traffic(self, flows)

    def workload(
        self,
        load: float | None = None,
        *,
        flows_per_s: float | None = None,
        sizes: Sizes = WEB_SEARCH,
        band: Band = "normal",
        seconds: float | None = None,
        seed: int = 1,
    ) -> Workload:
        """Return the flows that :meth:`traffic` would start; the lab need not be open."""
        if (load is None) == (flows_per_s is None):
            raise InputError("traffic needs either a load or flows per second")
        if flows_per_s is None:
            share = as_number(load, "load")
            if not 0 < share <= 1:
                raise InputError(
                    f"a load of {load} is not possible: it is a share of a link's rate, above 0 "
                    "and at most 1"
                )
            flows_per_s = share * min(self.rates) / max(sizes.mean_bytes, 1.0)
        return Workload(flows_per_s, sizes, band, seconds, seed)

    def _opened(self) -> Control:
        if self._control is None:
            raise LabError("the lab is not open; use it in a with block")
        return self._control

    def _blueprint(self) -> Blueprint:
        return Blueprint(
            self.workers,
            self._rate,
            self.mode,
            self.priority,
            os.readlink("/proc/self/ns/net"),
        )


def _bytes_per_second(rate: str | float) -> float:
    number = parse_rate(rate) if isinstance(rate, str) else as_number(rate, "rate")
    if not LEAST_RATE <= number <= MOST_RATE:
        raise InputError(
            f"a link of {format_rate(number)} is not possible; "
            f"use {format_rate(LEAST_RATE)} or more, up to {format_rate(MOST_RATE)}"
        )
    return number


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _encoded(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
