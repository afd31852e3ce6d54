"""Wherever a sweep is worked on, the answers are the same, and nothing is left behind."""

import multiprocessing
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from distributed import LocalCluster

import bytelane.core.policy as registered
import sweep_policies
from bytelane.cli import sweep_executor
from bytelane.cli.sweep_executor import require_executor, run_sweep
from bytelane.cluster import Cluster, Link
from bytelane.core import policies_for, register
from bytelane.errors import BytelaneError, InputError, MissingExtra
from bytelane.job import Job, Layer, Tensor
from bytelane.sim.sweep import Answer, WhatIf, make_settings

SMALL = Job(
    "small",
    tuple(Layer(f"l{i}", 1e-3, 2e-3) for i in range(4)),
    tuple(Tensor(f"t{i}", 1_000_003 * (i + 1), (i,)) for i in range(4)),
)
CLUSTERS = [Cluster.star(4, Link(1e8 * (i + 1), 1e-5, 2e-5)) for i in range(10)]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_executor.os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture(scope="module")
def asked() -> list[WhatIf]:
    lists = {"partition_bytes": [300_000, 1_000_000]}
    return make_settings([SMALL], CLUSTERS, policies_for("allreduce"), lists)


@pytest.fixture(scope="module")
def expected(asked: list[WhatIf]) -> list[Answer]:
    return answer(asked, "serial")


@pytest.fixture(scope="module")
def dask() -> Iterator[str]:
    """A scheduler and two workers, each a process of its own."""
    with local_dask(workers=2) as cluster:
        yield cluster.scheduler_address.replace("tcp://", "dask://")


def local_dask(workers: int) -> LocalCluster:
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        worker_dashboard_address=None,
    )


def answer(asked: list[WhatIf], executor: str) -> list[Answer]:
    told: list[int] = []
    answers = run_sweep(asked, executor, told.append)
    assert told == list(range(1, len(asked) + 1))
    return answers


def test_processes_give_the_same_answers(asked: list[WhatIf], expected: list[Answer]) -> None:
    before = set(multiprocessing.active_children())
    assert answer(asked, "processes") == expected
    assert set(multiprocessing.active_children()) == before


def test_a_dask_cluster_gives_the_same_answers(
    asked: list[WhatIf], expected: list[Answer], dask: str
) -> None:
    assert answer(asked, dask) == expected


def shares(monkeypatch: pytest.MonkeyPatch, asked: list[WhatIf], cores: int) -> list[int]:
    """With how many processes an automatic sweep is shared, if it is."""
    shared = []
    real = sweep_executor._processes
    monkeypatch.setattr(sweep_executor.os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(
        sweep_executor, "_processes", lambda count: shared.append(count) or real(count)
    )
    assert answer(asked, "auto") == answer(asked, "serial")
    return shared


def test_a_short_sweep_stays_in_this_process(
    asked: list[WhatIf], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shares(monkeypatch, asked[:20], cores=8) == []


def test_a_long_sweep_is_shared_among_the_cores(
    asked: list[WhatIf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_executor, "WORTH_SHARING_S", 0.0)
    assert shares(monkeypatch, asked[:20], cores=2) == [2]


def test_on_one_core_nothing_is_shared(
    asked: list[WhatIf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_executor, "WORTH_SHARING_S", 0.0)
    assert shares(monkeypatch, asked[:20], cores=1) == []


AskedOf = Callable[[registered.PolicyMaker], list[WhatIf]]


@pytest.fixture
def asked_of(monkeypatch: pytest.MonkeyPatch) -> AskedOf:
    """Settings under a policy that only this process knows by name."""
    monkeypatch.setattr(registered, "_registry", dict(registered._registry))

    def make(maker: registered.PolicyMaker) -> list[WhatIf]:
        register("own", sync=("allreduce",))(maker)
        return make_settings([SMALL], CLUSTERS[:3], ["own"])

    return make


@pytest.mark.parametrize("where", ["processes", "dask"])
def test_a_policy_of_ones_own_travels_along(where: str, dask: str, asked_of: AskedOf) -> None:
    asked = asked_of(sweep_policies.backwards)
    assert answer(asked, dask if where == "dask" else where) == answer(asked, "serial")


# What goes wrong


@pytest.mark.parametrize("where", ["serial", "processes", "dask"])
def test_a_mistake_is_told_wherever_it_is_found(where: str, dask: str, asked_of: AskedOf) -> None:
    before = multiprocessing.active_children()
    with pytest.raises(InputError, match="this one cannot be made"):
        answer(asked_of(sweep_policies.slow_link_only), dask if where == "dask" else where)
    assert set(multiprocessing.active_children()) <= set(before)


def test_a_process_that_is_ended_from_outside_is_told(asked_of: AskedOf) -> None:
    with pytest.raises(BytelaneError, match="was killed"):
        answer(asked_of(sweep_policies.deadly), "processes")


@pytest.mark.timeout(60)
def test_whoever_stops_need_not_wait_for_a_simulation_to_end(asked_of: AskedOf) -> None:
    def stop(done: int) -> None:
        if done == 2:  # the first is answered before there are processes, the last one never
            raise KeyboardInterrupt

    before = multiprocessing.active_children()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(asked_of(sweep_policies.sleepy), "processes", stop)
    assert set(multiprocessing.active_children()) <= set(before)


@pytest.mark.parametrize(
    "name", ["", "ray", "Serial", "dask", "dask://", "dask://host", "dask://host:port", "tcp://a:1"]
)
def test_an_executor_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="use auto, serial, processes or dask://HOST:PORT"):
        require_executor(name)


@pytest.fixture
def server() -> Iterator[Callable[[bytes], str]]:
    """A server that says something to whoever comes, and is no scheduler."""
    listener = socket.create_server(("127.0.0.1", 0))

    def start(words: bytes) -> str:
        def serve() -> None:
            while True:
                try:
                    guest, _ = listener.accept()
                except OSError:
                    return
                with guest:
                    guest.sendall(words)

        threading.Thread(target=serve, daemon=True).start()
        return f"dask://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-x\r\n", bytes(8)])
def test_another_kind_of_server_is_no_scheduler(
    asked: list[WhatIf], server: Callable[[bytes], str], words: bytes
) -> None:
    with pytest.raises(InputError, match="found no Dask scheduler at 127"):
        answer(asked, server(words))


def test_a_server_that_says_nothing_is_not_waited_for(
    asked: list[WhatIf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_executor, "CONNECT_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(InputError, match="found no Dask scheduler"),
    ):
        answer(asked, f"dask://127.0.0.1:{silent.getsockname()[1]}")


def test_a_scheduler_without_workers_is_told(asked: list[WhatIf]) -> None:
    with local_dask(workers=0) as empty:
        address = empty.scheduler_address.replace("tcp://", "dask://")
        with pytest.raises(InputError, match="has no workers; start some with: dask worker 127"):
            answer(asked, address)


def test_without_dask_there_is_the_command_that_installs_it(
    asked: list[WhatIf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install 'bytelane\[dask\]'"):
        answer(asked, "dask://127.0.0.1:1")
