"""Ranks that are hurt from outside at any moment of a run, and what becomes of the others.

As a script it is a rank (``rank RUN``), or a process that has torch loaded and forks ranks
(``zygote``). Ranks end as a user's do: by the end of the interpreter, with its exit code.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from process_lookup import runs, sentinels_of

SOON_S = 10.0
# What is waited for until then was not promised to end earlier.
TIMEOUT_S = 20.0
# From the error to the end of the process, and of its sentinel.
ENDING_S = 30.0
# prepare() loads its modules before it waits for anybody; under torchrun they are not loaded yet.
LOADING_S = 3.0
FROZEN_S = 12.0
MOMENT_S = 2.0
# Until init_process_group is over on all ranks, which torch has to do.
STARTING_S = 120.0
STEPS = 25
PAUSE_S = 0.02
MARK = "BYTELANE_HURTING"

FAULTS = (
    "kill",
    "kill both",
    "freeze",
    "freeze both",
    "freeze and continue",
    "raise",
    "exit",
)
ENDING = ("kill", "kill both", "raise", "exit")
HARMLESS = ("stop", "kill the sentinel", "stop the sentinel")
OWN_FAULTS = (
    "exit in flight",
    "exit while planning",
    "exit while ranks agree",
    "exit while waiting",
    "fork",
    "freeze while ranks agree",
)
EXITS_WITHIN = {
    "exit while planning": ("bytelane.runtime.torch.carrier", "GlooCarrier", "fit"),
    "exit while ranks agree": ("bytelane.runtime.torch.control", "GlooControl", "_wait_for"),
}
LATE_S = 0.5
KNOBS: dict[str, dict[str, Any]] = {
    "auto": {},
    "fifo": {"policy": "fifo"},
    "bytescheduler": {"policy": "bytescheduler", "partition": "1KiB", "credit": "2KiB"},
    "two lanes": {"policy": "bytescheduler", "partition": "1KiB", "credit": "4KiB", "lanes": 2},
    "dear": {"policy": "dear", "fusion": "4KiB"},
    "dear on two lanes": {"policy": "dear", "fusion": "4KiB", "lanes": 2},
    "mg-wfbp": {"policy": "mg-wfbp"},
    "p3": {"policy": "p3", "partition": "2KiB"},
}


@dataclass(frozen=True)
class Event:
    """What is done to one rank of a run, and when: a fraction of what the run takes unhurt."""

    fault: str
    at: float
    victim: int
    world: int
    knobs: str
    store: str
    """``file``, ``tcp``, ``ipv6`` or ``torchrun``."""
    late: bool = False
    """Whether the victim takes its time before it calls prepare()."""


def draw(chance: random.Random, world: int) -> Event:
    return Event(
        chance.choice(FAULTS * 2 + HARMLESS),
        chance.random(),
        chance.randrange(world),
        world,
        chance.choice(list(KNOBS)),
        chance.choice(["file", "tcp", "file", "tcp", "file", "tcp", "torchrun"]),
        chance.random() < 0.2,
    )


# --- what a test sees ----------------------------------------------------------------------------


class Zygote:
    """Forks ranks from a process that has loaded everything."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        self._started: list[int] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def start(self, folder: Path, rank: int) -> int:
        """Return the number of a new rank's process."""
        assert self._process.stdin is not None
        with self._lock:
            self._started.clear()
            self._process.stdin.write(f"{json.dumps([str(folder), rank])}\n")
            self._process.stdin.flush()
            with self._news:
                assert self._news.wait_for(lambda: self._started, STARTING_S)
                return self._started.pop()

    def code(self, pid: int) -> int | None:
        """Return its exit code as a shell would, if it has ended."""
        return self._ended.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *numbers = line.split()
            with self._news:
                if word == "started":
                    self._started.append(int(numbers[0]))
                else:
                    self._ended[int(numbers[0])] = int(numbers[1])
                self._news.notify_all()


class Run:
    """One training, whose ranks leave notes in a folder."""

    def __init__(self, folder: Path, event: Event, zygote: Zygote) -> None:
        self.event = event
        self._folder = folder
        self._zygote = zygote
        self._pids: dict[int, int] = {}
        self._launcher: subprocess.Popen[bytes] | None = None
        (folder / "event").write_text(json.dumps(asdict(event)))

    def start(self) -> None:
        event = self.event
        if event.store == "torchrun":
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            self._launcher = subprocess.Popen(
                [sys.executable, *words, str(event.world), __file__, "rank", str(self._folder)],
                stdout=(self._folder / "launcher").open("wb"),
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: str(self._folder), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        else:
            for rank in range(event.world):
                self._pids[rank] = self._zygote.start(self._folder, rank)
        self._await(lambda: all(self.has(rank, "began") for rank in self.ranks), STARTING_S)
        for rank in self.ranks:
            self._pids[rank] = int(self.note(rank, "began")[1])

    @property
    def ranks(self) -> range:
        return range(self.event.world)

    def has(self, rank: int, what: str) -> bool:
        return (self._folder / f"{what}{rank}").exists()

    def note(self, rank: int, what: str) -> Any:
        """Return [when, what] that a rank has noted."""
        return json.loads((self._folder / f"{what}{rank}").read_text())

    def has_ended(self, rank: int) -> bool:
        if self._launcher is not None:
            return not runs(self._pids[rank])
        return self._zygote.code(self._pids[rank]) is not None

    def code(self, rank: int) -> int | None:
        """None if torchrun started it."""
        return None if self._launcher is not None else self._zygote.code(self._pids[rank])

    def await_end(self, rank: int, limit_s: float) -> bool:
        return self._await(lambda: self.has_ended(rank), limit_s)

    def send(self, number: int, *, sentinel: bool = False) -> None:
        """Send a signal to the victim or to its sentinel, if it is there."""
        pids = [self._pids[self.event.victim]]
        if sentinel:
            pids = sentinels_of(pids[0])
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def lines(self, rank: int) -> list[tuple[float, str]]:
        """Return what a rank has printed, and when."""
        text = (self._folder / f"output{rank}").read_text()
        stamped = (line.partition(" ") for line in text.splitlines())
        return [(float(when), line) for when, _, line in stamped if _is_number(when)]

    def where(self, rank: int) -> str:
        """Return the end of what a rank that hangs has printed, with where its threads are."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids[rank], signal.SIGQUIT)
        time.sleep(0.5)
        return "\n    ".join((self._folder / f"output{rank}").read_text().splitlines()[-40:])

    def left(self) -> list[int]:
        """Return the processes of this run that are there: sentinels, and what torchrun starts."""
        mark = f"{MARK}={self._folder}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0") and runs(
                    int(folder.name)
                ):
                    found.append(int(folder.name))
        return found

    def end(self) -> None:
        """Leave no process of this run."""
        ranks = [pid for rank, pid in self._pids.items() if not self.has_ended(rank)]
        for pid in [*self.left(), *ranks]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._launcher is not None:
            self._launcher.kill()
            self._launcher.wait()

    def _await(self, condition: Callable[[], bool], limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while not (holds := condition()) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return holds


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(text) > 0
    return False


def unhurt_s(event: Event, folder: Path, zygote: Zygote) -> float:
    """Return how long such a run takes, from init_process_group to the end of the process."""
    run = Run(folder, event, zygote)
    try:
        run.start()
        began_s = time.time()
        ended = all(run.await_end(rank, STARTING_S) for rank in run.ranks)
        assert ended, "a run that nobody has hurt hangs"
        notes = [run.note(rank, "ended") for rank in run.ranks]
        assert all(note[1]["error"] is None for note in notes), notes
        return time.time() - began_s
    finally:
        run.end()


def hurt(event: Event, duration_s: float, folder: Path, zygote: Zygote) -> list[str]:
    """Let it happen, and return what is wrong with what became of it."""
    run = Run(folder, event, zygote)
    try:
        run.start()
        time.sleep(event.at * duration_s)
        at_s = time.time()
        continued_s = _do(run)
        wrong = list(_violations(run, at_s, continued_s))
        # What was frozen for good; its sentinel first, which is found through its rank.
        run.send(signal.SIGKILL, sentinel=True)
        run.send(signal.SIGKILL)
        deadline_s = time.monotonic() + ENDING_S
        while (left := run.left()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        if left:
            wrong.append(f"{len(left)} processes are left: {[_command(pid) for pid in left]}")
        return wrong
    finally:
        run.end()


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[-60:]
    return ""


def _do(run: Run) -> float | None:
    """Do what is to be done; return when the victim went on, if it was stopped for a while."""
    signals = {"kill": signal.SIGKILL, "raise": signal.SIGUSR1, "exit": signal.SIGUSR2}
    match run.event.fault:
        case "kill both":
            run.send(signal.SIGKILL, sentinel=True)
            run.send(signal.SIGKILL)
        case "freeze" | "freeze and continue" | "stop":
            run.send(signal.SIGSTOP)
        case "freeze both":
            run.send(signal.SIGSTOP, sentinel=True)
            run.send(signal.SIGSTOP)
        case "kill the sentinel":
            run.send(signal.SIGKILL, sentinel=True)
        case "stop the sentinel":
            run.send(signal.SIGSTOP, sentinel=True)
        case fault:
            run.send(signals[fault])
    if run.event.fault in ("stop", "freeze and continue"):
        time.sleep(MOMENT_S if run.event.fault == "stop" else FROZEN_S)
        run.send(signal.SIGCONT)
        return time.time()
    return None


def _violations(run: Run, at_s: float, continued_s: float | None) -> Iterator[str]:
    event = run.event
    last_s = TIMEOUT_S if "freeze" in event.fault else SOON_S + 3 * MOMENT_S
    survivors = []
    for rank in run.ranks:
        if rank == event.victim:
            continue
        if not run.await_end(rank, at_s + last_s + ENDING_S - time.time()):
            yield f"rank {rank} hangs; {run.where(rank)}"
        elif not run.has(rank, "ended"):
            if event.store == "torchrun" and event.fault in ENDING:
                continue  # torchrun ends all as soon as one has ended
            yield f"rank {rank} has ended without a word, code {run.code(rank)}"
        else:
            survivors.append(rank)
    for rank in survivors:
        yield from _wrong_end(run, rank, at_s)
    # A rank that is frozen before it has entered prepare() cannot be told from a slow one.
    if any("did not call prepare()" in run.note(rank, "ended")[1]["message"] for rank in survivors):
        lines = [one for rank in survivors for one in run.lines(rank)]
        # Nobody can miss it before having entered prepare(), too.
        missed_s = max(at_s, min(run.note(rank, "entering")[0] for rank in survivors))
        named = [when - missed_s for when, line in lines if f"rank {event.victim}" in line]
        if not named or min(named) > SOON_S:
            yield f"no line named the rank that had not entered prepare(): {lines}"
    yield from _wrong_end_of_victim(run, continued_s)


def _wrong_end(run: Run, rank: int, at_s: float) -> Iterator[str]:
    when_s, end = run.note(rank, "ended")
    victim, error, took_s = run.event.victim, end["error"], when_s - at_s
    is_slow = "did not call prepare()" in end["message"] and "freeze" in run.event.fault
    if is_slow:  # nobody is waited for before that
        took_s = when_s - max(at_s, run.note(rank, "entering")[0])
    if run.event.fault in HARMLESS:
        if error is not None:
            yield f"rank {rank} ended with {error}: {end['message']}, although nothing was lost"
    elif error is not None and end["peer"] != victim and f"rank {victim}" not in end["message"]:
        yield f"rank {rank} does not name rank {victim}, but says {error}: {end['message']}"
    elif error is not None and took_s > (TIMEOUT_S + LOADING_S if is_slow else SOON_S):
        yield f"rank {rank} said {error} only after {took_s:.1f} s: {end['message']}"
    code = run.code(rank)
    if code is not None and code != (0 if error is None else 1):
        yield f"rank {rank} ended with exit code {code} after {error}"


def _wrong_end_of_victim(run: Run, continued_s: float | None) -> Iterator[str]:
    victim, fault = run.event.victim, run.event.fault
    if fault in ("kill", "kill both", "freeze", "freeze both"):
        return
    since_s = continued_s or time.time()
    if not run.await_end(victim, since_s + SOON_S + ENDING_S - time.time()):
        yield f"the victim, rank {victim}, hangs; {run.where(victim)}"
        return
    code = run.code(victim)
    end = run.note(victim, "ended") if run.has(victim, "ended") else [0, {"error": "nothing"}]
    error = end[1]["error"]
    if continued_s is not None and error is not None and end[0] - continued_s > SOON_S:
        yield f"the victim, rank {victim}, said {error} only after {end[0] - continued_s:.1f} s"
    # When the first rank has given up, torchrun asks all others to end, the stopped one too.
    if continued_s is not None and error == "nothing" and run.event.store != "torchrun":
        yield f"the victim, rank {victim}, has ended without a word, code {code}"
    expected = {"exit": (0, 3), "raise": (0, 1), "stop": (0,)}.get(fault, (0, 1))
    if end[1]["error"] is None:  # the interpreter, at its end, has no handler for a signal
        expected = (*expected, -signal.SIGUSR1, -signal.SIGUSR2)
    if code is not None and code not in expected:
        yield f"the victim, rank {victim}, ended with exit code {code}, not {expected}"
    if fault in HARMLESS and error is not None:
        yield f"the victim, rank {victim}, ended with {end[1]}, although nothing was lost"


# --- a rank --------------------------------------------------------------------------------------


# A script's model is there until the interpreter ends.
_globals: list[Any] = []


class Bang(Exception):
    """What the user's own code raises."""


class Stamped:
    """Writes lines with the time in front, at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, text: str) -> int:
        if text.strip():
            stamped = "".join(f"{time.time():.3f} {line}\n" for line in text.splitlines())
            os.write(self._file, stamped.encode())
        return len(text)

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._file


class Rank:
    """One rank of a run, that leaves notes."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._pid = os.getpid()
        self._event = Event(**json.loads((folder / "event").read_text()))

    def be(self) -> None:
        """Train, and note how that ended."""
        self._redirect()
        self._init_process_group()
        self._note("began", os.getpid())
        error: BaseException | None = None
        try:
            self._train()
        except BaseException as raised:
            error = raised
            raise
        finally:
            if os.getpid() == self._pid:  # and not a child that was forked
                message = {
                    "error": None if error is None else type(error).__name__,
                    "peer": getattr(error, "rank", None),
                    "message": str(error),
                }
                self._note("ended", message)

    def _note(self, what: str, text: Any) -> None:
        draft = self._folder / f"draft{self._rank}"
        draft.write_text(json.dumps([time.time(), text]))
        draft.rename(self._folder / f"{what}{self._rank}")

    def _redirect(self) -> None:
        sys.stdout = sys.stderr = Stamped(self._folder / f"output{self._rank}")  # type: ignore[assignment]
        os.dup2(sys.stdout.fileno(), 1)
        os.dup2(sys.stdout.fileno(), 2)

        def bang(*_: Any) -> None:
            raise Bang("on purpose")

        faulthandler.register(signal.SIGQUIT, sys.stdout)
        signal.signal(signal.SIGUSR1, bang)
        signal.signal(signal.SIGUSR2, lambda *_: sys.exit(3))

    def _init_process_group(self) -> None:
        import torch.distributed as dist

        store, world = self._event.store, self._event.world
        if store == "torchrun":
            dist.init_process_group("gloo")
        elif store in ("tcp", "ipv6"):
            # A port of the run's own, that no socket takes by chance.
            host = "::1" if store == "ipv6" else "127.0.0.1"
            port = 20_000 + int(os.stat(self._folder).st_ino) % 10_000
            os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
            dist.init_process_group("gloo", rank=self._rank, world_size=world)
        else:
            address = f"file://{self._folder}/store"
            dist.init_process_group("gloo", address, rank=self._rank, world_size=world)

    def _train(self) -> None:
        import bytelane
        from training import loss_of, make

        event, is_victim = self._event, self._rank == self._event.victim
        net, opt = make("chain")
        _globals.append(net)
        if event.late and is_victim:
            time.sleep(0.5)
        if event.fault == "freeze while ranks agree" and is_victim:
            self._freeze_in_agreement()
        self._note("entering", "")
        bytelane.prepare(net, opt, timeout_s=TIMEOUT_S, **KNOBS[event.knobs])
        if event.fault in EXITS_WITHIN and is_victim:
            self._exit_within(event.fault)
        for step in range(STEPS):
            # In the middle the victim does something of its own, while the others are late: then
            # operations are in flight, and updates are owed.
            what = event.fault if step == STEPS // 2 else ""
            if what in OWN_FAULTS and not is_victim:
                time.sleep(LATE_S)
            opt.zero_grad()
            loss_of(net, self._rank, step).backward()
            if what == "exit in flight" and is_victim:
                self._note("hurt", "")
                sys.exit(3)
            if what == "exit while waiting" and is_victim:
                self._exit_in(LATE_S / 5)  # while it waits for the others, who are late
            opt.step()
            if what == "exit while waiting" and is_victim:
                net.state_dict()
            if what == "fork" and is_victim:
                child = os.fork()
                if child == 0:
                    sys.exit(5)
                self._note("child", child)
            time.sleep(PAUSE_S)
        net.state_dict()

    def _exit_within(self, fault: str) -> None:
        """End this rank's script as soon as it plans, or waits for the others to agree."""
        module, name, method = EXITS_WITHIN[fault]
        setattr(getattr(importlib.import_module(module), name), method, self._leave)

    def _exit_in(self, seconds: float) -> None:
        signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _leave(self, *_: Any) -> None:
        self._note("hurt", "")
        sys.exit(3)

    def _freeze_in_agreement(self) -> None:
        """Stop this rank and its sentinel after all have met, and before a session exists."""
        from bytelane.runtime.torch import agreement

        def freeze(*_: Any) -> None:
            self._note("hurt", "")
            for pid in [*sentinels_of(os.getpid()), os.getpid()]:
                os.kill(pid, signal.SIGSTOP)

        agreement.require_equal = freeze


def be_zygote() -> None:
    """Fork a rank for every line on standard input; tell of its start and of its end."""
    import select

    import torch

    import bytelane.runtime.torch
    import bytelane.tune.probe  # noqa: F401
    import training  # noqa: F401

    torch.set_num_threads(1)
    children: set[int] = set()
    is_open = True
    while is_open or children:
        if is_open and select.select([0], [], [], 0.02)[0]:
            line = _read_line()
            is_open = bool(line)
            if line:
                folder, rank = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    os.setsid()
                    os.close(0)
                    # The sentinel is one of the run, too: it inherits this.
                    os.environ |= {MARK: folder, "GLOO_SOCKET_IFNAME": "lo"}
                    return Rank(Path(folder), rank).be()
                children.add(pid)
                print("started", pid, flush=True)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.discard(pid)
                print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)
        if not is_open:
            time.sleep(0.02)
    return None


def _read_line() -> str:
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            break
        text += piece
    return text.decode()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1] == "zygote":
        be_zygote()
    else:
        Rank(Path(sys.argv[2]), int(os.environ["RANK"])).be()
