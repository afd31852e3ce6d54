"""The emulated accelerator: what its host does is hidden, what its host waits for is not."""

import os
import subprocess
import sys
import threading
import time

import pytest

from bytelane.bench.cores import CoreQueue
from bytelane.bench.emulate import Accelerator


class Host:
    """A clock that only goes on when somebody works, waits or sleeps."""

    def __init__(self) -> None:
        self.now, self.cpu, self.queued = 100.0, 7.0, 3.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def queue(self, seconds: float) -> None:
        self.now += seconds
        self.queued += seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.cpu

    def waited_s(self) -> float:
        return self.queued


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr("bytelane.bench.emulate.time", host)
    monkeypatch.setattr("bytelane.bench.emulate.CoreQueue", lambda: host)
    return host


Act = tuple[str, float]


def act(host: Host, accelerator: Accelerator, acts: list[Act]) -> float:
    """Return how long the host, or its accelerator, takes for these."""
    began = host.now
    for what, seconds in acts:
        getattr(accelerator if what in ("forward", "backward") else host, what)(seconds)
    return host.now - began


@pytest.mark.parametrize(
    ("acts", "takes_s"),
    [
        pytest.param(
            3 * [("work", 0.2), ("forward", 1.0)] + 3 * [("work", 0.2), ("backward", 1.0)],
            6.0,
            id="the host's work is hidden behind the computing",
        ),
        pytest.param(
            3 * [("queue", 0.4), ("forward", 1.0)],
            3.0,
            id="waiting for a core that another host has is work",
        ),
        pytest.param(
            [("work", 0.2), ("wait", 0.5), ("forward", 1.0)],
            1.5,
            id="a forward pass that waits is late",
        ),
        pytest.param(
            4 * [("work", 3.0), ("forward", 1.0)],
            12.0,
            id="the host cannot be faster than it is",
        ),
        pytest.param(
            [("wait", 0.5), ("backward", 1.0), ("wait", 0.3), ("backward", 1.0)],
            2.5,
            id="a backward pass is one queue, late if the forward pass has waited",
        ),
    ],
)
def test_only_waiting_makes_computing_late(host: Host, acts: list[Act], takes_s: float) -> None:
    accelerator = Accelerator()
    accelerator.forward(1.0)
    assert act(host, accelerator, acts) == pytest.approx(takes_s)


RIVAL = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("begun", flush=True)
while True: pass
"""


def test_a_thread_that_has_to_share_a_core_has_waited_for_it() -> None:
    core = min(os.sched_getaffinity(0))
    waited: list[float] = []

    def work() -> None:
        os.sched_setaffinity(0, {core})  # of this thread only
        queue = CoreQueue()
        began, before = time.thread_time(), queue.waited_s()
        while time.thread_time() - began < 0.05:
            pass
        waited.append(queue.waited_s() - before)

    command = [sys.executable, "-c", RIVAL, str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rival:
        assert rival.stdout is not None
        rival.stdout.readline()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(timeout=20)
        rival.kill()
    assert waited[0] > 0.01


def test_where_nobody_knows_of_the_queue_it_is_empty() -> None:
    assert CoreQueue("/nowhere").waited_s() == 0.0
