"""Start and kill labs, again and again; look for anything that is left.

python tests/soak/lab.py [--cycles 1000] [--seed 1]

In every cycle a process opens a lab and runs a command in it that ignores requests to end and
leaves a daemon. At a random moment, also while the lab is being built, the process or its
supervisor gets a random signal. Then no process of that lab may be left; and at the end, of all
cycles together, no namespace, no mount, no device and no file.
"""

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bytelane.lab import Lab, clean
from bytelane.lab.clean import lab_processes

COMMAND = ["sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 600"]
ENDING_S = 20.0
# The kernel takes namespaces apart in the background, and its count of them is only about right.
SETTLING_S = 30.0
SLACK = 50


class Traces(NamedTuple):
    """What a lab could leave, besides processes."""

    namespaces: frozenset[str]
    devices: frozenset[str]
    mounts: frozenset[str]
    files: frozenset[str]


class Cycle(NamedTuple):
    """How one lab begins and ends."""

    mode: str
    workers: int
    priority: str | None
    victim: str
    signal: signal.Signals | None
    after_s: float


def draw(chance: random.Random) -> Cycle:
    mode = chance.choice(["namespace", "namespace", "namespace", "pacing"])
    return Cycle(
        mode,
        chance.randint(2, 4),
        chance.choice([None, "pfifo_fast", "htb"]) if mode == "namespace" else None,
        chance.choice(["owner", "owner", "supervisor", "both"]),
        chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None]),
        chance.uniform(0, 0.7),
    )


def own_a_lab(cycle: Cycle) -> None:
    """What the child does. Python's own handler makes SIGINT an exception."""
    with Lab(cycle.workers, "1Gbit", mode=cycle.mode, priority=cycle.priority) as lab:  # type: ignore[arg-type]
        wants_to_end = cycle.signal is None
        lab.run(["sleep", "0.1"] if wants_to_end else COMMAND, grace_s=0.1)


def run(cycle: Cycle) -> int:
    """Return the number of the process that had the lab, when it has ended."""
    child = os.fork()
    if child == 0:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)
        try:
            own_a_lab(cycle)
        finally:
            os._exit(0)
    time.sleep(cycle.after_s)
    for victim in victims(cycle, child):
        os.kill(victim, cycle.signal)  # type: ignore[arg-type]
    deadline = time.monotonic() + ENDING_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return child


def victims(cycle: Cycle, owner: int) -> list[int]:
    """Who is to get the signal, of those who are there."""
    if cycle.signal is None:
        return []
    supervisors = [pid for pid in members(owner) if "bytelane.lab.supervisor" in command(pid)]
    # A supervisor ends on no signal but the last; its owner must end too.
    if cycle.victim == "supervisor" and cycle.signal == signal.SIGKILL and supervisors:
        return supervisors[:1]
    return [*supervisors[:1], owner] if cycle.victim == "both" else [owner]


def members(owner: int) -> list[int]:
    return [pid for pid, lab in lab_processes() if lab.owner == owner]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def left_after(owner: int, may_clean: bool) -> list[int]:
    deadline = time.monotonic() + ENDING_S
    while (left := members(owner)) and time.monotonic() < deadline:
        if may_clean:
            clean()
        time.sleep(0.01)
    return left


def traces() -> Traces:
    namespaces = set()
    others = {str(pid) for pid, lab in lab_processes() if lab.has_owner}  # ours have all ended
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name in others:
            continue
        try:
            namespaces.add(os.readlink(folder / "ns/net"))
        except OSError:
            continue
    return Traces(
        frozenset(namespaces),
        frozenset(os.listdir("/sys/class/net")),
        frozenset(
            re.findall(r"^\d+ \d+ \S+ (.*)$", Path("/proc/self/mountinfo").read_text(), re.M)
        ),
        frozenset(os.listdir(tempfile.gettempdir())),
    )


def namespaces_by_the_kernel() -> int | None:
    """How many network namespaces exist at all, also without a process; only root may know."""
    try:
        found = re.search(r"^net_namespace +(\d+)", Path("/proc/slabinfo").read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) if found else None


def report_leaks(before: Traces, count_before: int | None) -> int:
    deadline = time.monotonic() + SETTLING_S
    while True:
        new = {
            name: sorted(now - then)
            for name, then, now in zip(Traces._fields, before, traces(), strict=True)
            if now - then
        }
        count = namespaces_by_the_kernel()
        grown = (count or 0) - (count_before or 0)
        if (not new and grown <= SLACK) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    print(f"network namespaces in the kernel: {count_before} before, {count} after")
    for name, found in new.items():
        print(f"new {name}: {', '.join(found)}")
    return len(new) + (grown > SLACK)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # to see only our own files
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        return soak(options.cycles, options.seed)


def soak(cycles: int, seed: int) -> int:
    """Return 1 if anything is left."""
    chance = random.Random(seed)
    before, count_before = traces(), namespaces_by_the_kernel()
    leaks, kinds, began = 0, Counter[str](), time.monotonic()
    for number in range(1, cycles + 1):
        cycle = draw(chance)
        owner = run(cycle)
        # Only then does somebody have to clean up: see bytelane/lab/clean.py.
        may_clean = (cycle.mode, cycle.victim, cycle.signal) == ("pacing", "both", signal.SIGKILL)
        if left := left_after(owner, may_clean):
            leaks += 1
            print(f"cycle {number}: {cycle} left {[command(pid) for pid in left]}")
        kinds[f"{cycle.mode}, {cycle.signal.name if cycle.signal else 'no signal'}"] += 1
        if number % 100 == 0:
            print(f"{number} cycles, {time.monotonic() - began:.0f} s, {leaks} leaks", flush=True)
    for kind, times in sorted(kinds.items()):
        print(f"{times:5} {kind}")
    leaks += report_leaks(before, count_before)
    print("nothing is left" if not leaks else f"{leaks} leaks")
    return bool(leaks)


if __name__ == "__main__":
    sys.exit(main())
