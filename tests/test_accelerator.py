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


def test_the_hosts_work_is_hidden_behind_the_computing(host: Host) -> None:
    accelerator = Accelerator()
    accelerator.forward(1.0)
    began = host.now
    for _ in range(3):
        host.work(0.2)
        accelerator.forward(1.0)
    for _ in range(3):
        host.work(0.2)
        accelerator.backward(1.0)
    assert host.now - began == pytest.approx(6.0)


def test_waiting_for_a_core_that_another_host_has_is_work(host: Host) -> None:
    accelerator = Accelerator()
    accelerator.forward(1.0)
    began = host.now
    for _ in range(3):
        host.queue(0.4)
        accelerator.forward(1.0)
    assert host.now - began == pytest.approx(3.0)


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


def test_a_forward_pass_that_waits_is_late(host: Host) -> None:
    accelerator = Accelerator()
    accelerator.forward(1.0)
    began = host.now
    host.work(0.2)
    host.wait(0.5)
    accelerator.forward(1.0)
    assert host.now - began == pytest.approx(1.5)


def test_the_host_cannot_be_faster_than_it_is(host: Host) -> None:
    accelerator = Accelerator()
    accelerator.forward(1.0)
    began = host.now
    for _ in range(4):
        host.work(3.0)
        accelerator.forward(1.0)
    assert host.now - began == pytest.approx(12.0)


def test_a_backward_pass_is_one_queue_that_begins_late_if_the_forward_pass_has_waited(
    host: Host,
) -> None:
    accelerator = Accelerator()
    accelerator.forward(1.0)
    began = host.now
    host.wait(0.5)
    accelerator.backward(1.0)
    host.wait(0.3)
    accelerator.backward(1.0)
    assert host.now - began == pytest.approx(2.5)
