"""``prepare(sync="ps")``: the same two lines, through parameter servers as processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import bytelane
from bytelane.core import policies_for
from bytelane.errors import BytelaneError, InputError, NotSupported, TransferFailed
from bytelane.runtime.torch import session_of
from bytelane.runtime.torch.rendezvous import Rendezvous
from bytelane.runtime.torch.server_control import MOST_BYTES
from ranks import Pool
from training import equal, loss_of, make, trained_by_ddp, trained_by_us, weights

SERVERS: dict[str, Any] = {"sync": "ps"}
SMALL: dict[str, Any] = {"policy": "bytescheduler", "partition": "1KiB", "credit": "2KiB"}
POLICIES = [policy for policy in policies_for("ps") if policy != "optimal"]


def same_as_ddp(rank: int, prepare: dict[str, Any], **case: Any) -> bool:
    ours = trained_by_us(rank, prepare=SERVERS | prepare, **case)
    return equal(ours, trained_by_ddp(rank, **case))


@pytest.mark.parametrize("prepare", [{}, SMALL, *({"policy": p} for p in POLICIES)], ids=str)
def test_weights_equal_ddp_under_every_policy(two_ranks: Pool, prepare: dict[str, Any]) -> None:
    case = {"model": "chain", "optimizer": "momentum", "prepare": prepare}
    assert two_ranks.run(same_as_ddp, **case) == [True, True]


# --- servers that run already ---------------------------------------------------------------------


@contextlib.contextmanager
def running_servers(count: int) -> Iterator[tuple[list[str], list[int]]]:
    """Start servers as ``bytelane ps serve`` does; give their addresses and process ids."""
    words = [sys.executable, "-m", "bytelane", "ps", "serve", "--listen", "127.0.0.1:0", "--json"]
    servers = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        ready = [json.loads(server.stdout.readline()) for server in servers]  # type: ignore[union-attr]
        addresses = [f"{one['host']}:{one['up']}" for one in ready]
        yield addresses, [server.pid for server in servers]
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def test_workers_may_use_servers_of_their_own_hosts(two_ranks: Pool) -> None:
    with running_servers(3) as (addresses, _):
        case = {"model": "chain", "optimizer": "adamw", "prepare": {"servers": addresses}}
        assert two_ranks.run(same_as_ddp, **case) == [True, True]


def no_group_is_opened(rank: int, addresses: list[str]) -> list[str]:
    opened: list[str] = []
    before = Rendezvous.open_group
    Rendezvous.open_group = lambda *_: opened.append("a group") or 1 / 0  # type: ignore[assignment]
    try:
        trained_by_us(rank, "chain", "sgd", SERVERS | {"servers": addresses})
    finally:
        Rendezvous.open_group = before  # type: ignore[method-assign]
    return opened


def test_no_process_group_of_ours_is_opened(two_ranks: Pool) -> None:
    with running_servers(1) as (addresses, _):
        assert two_ranks.run(no_group_is_opened, addresses=addresses) == [[], []]


def replans(rank: int) -> tuple[list[str], bool]:
    net, opt = make("chain", "momentum")
    bytelane.prepare(net, opt, timeout_s=20, sync="ps", **SMALL)
    seen = []
    for step in range(20):
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        opt.step()
        if step == 8:
            bytelane.replan(net, policy="p3", partition="512B")
        found = bytelane.status(net)
        assert found is not None
        seen.append(found.policy)
    weights = [p.detach().clone() for p in net.parameters()]
    return list(dict.fromkeys(seen)), equal(weights, trained_by_ddp(rank, "chain", "momentum"))


def test_the_policy_changes_while_training_runs(two_ranks: Pool) -> None:
    for policies, is_equal in two_ranks.run(replans):
        assert policies == ["plain parts", "bytescheduler", "p3"]
        assert is_equal


def starts_as_rank_0(rank: int) -> bool:
    """Give every rank other weights, more than one exchange carries."""
    torch.manual_seed(rank)
    net = torch.nn.Linear(1024, 5 * MOST_BYTES // 4 // 1024 + 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    bytelane.prepare(net, opt, timeout_s=30, sync="ps")
    torch.manual_seed(0)
    return equal(weights(net), weights(torch.nn.Linear(1024, net.out_features)))


def test_a_large_model_begins_with_the_weights_of_rank_0(two_ranks: Pool) -> None:
    assert two_ranks.run(starts_as_rank_0) == [True, True]


# --- what goes wrong ------------------------------------------------------------------------------


def loses_a_server(rank: int, addresses: list[str], victim: int) -> tuple[str, float]:
    net, opt = make("chain", "momentum")
    bytelane.prepare(net, opt, timeout_s=60, sync="ps", servers=addresses, **SMALL)
    killed_s = time.monotonic()
    try:
        for step in range(1000):
            if step == 10:
                killed_s = time.monotonic()
                if rank == 0:
                    os.kill(victim, signal.SIGKILL)
            opt.zero_grad()
            loss_of(net, rank, step).backward()
            opt.step()
            time.sleep(0.005)
    except BytelaneError as error:
        session_of(net).carrier.leave()
        return f"{type(error).__name__}: {error}", time.monotonic() - killed_s
    return "nothing", 0.0


def test_a_lost_server_is_named(two_ranks: Pool) -> None:
    with running_servers(2) as (addresses, pids):
        found = two_ranks.run(loses_a_server, addresses=addresses, victim=pids[1])
    for text, took_s in found:
        assert "server 1" in text or "rank" in text, text
        assert took_s < 15
    assert any(f"parameter server 1 at {addresses[1]}" in text for text, _ in found)


def refused(rank: int, **prepare: Any) -> str:
    net, opt = make("chain", "sgd")
    try:
        bytelane.prepare(net, opt, timeout_s=10, sync="ps", **prepare)
    except (InputError, NotSupported, TransferFailed) as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        ({"policy": "dear"}, "dear has no meaning for ps; these have"),
        ({"policy": "optimal"}, "optimal can be simulated, but not yet with servers"),
        ({"lanes": 2}, "lanes have no effect with parameter servers"),
        ({"partition": "1MiB"}, "partition has no effect under policy auto"),
        ({"trace": "t.jsonl"}, "trace is not supported with parameter servers yet"),
        ({"servers": "127.0.0.1:5600"}, "it must be a list of HOST:PORT"),
        ({"servers": ["nowhere"]}, "'nowhere' is not an address; use HOST:PORT"),
        ({"servers": ["192.0.2.1:5600"]}, "bytelane ps keygen FOLDER"),
        ({"servers": ["192.0.2.1:5600"]}, "plaintext=True"),
        ({"keys": "no-such-folder"}, "no-such-folder"),
    ],
)
def test_what_cannot_be_is_a_sentence(two_ranks: Pool, prepare: dict[str, Any], words: str) -> None:
    for sentence in two_ranks.run(refused, **prepare):
        assert words in sentence


def test_servers_without_sync_are_refused() -> None:
    net, opt = make("chain", "sgd")
    with pytest.raises(InputError, match='sync="ps"'):
        bytelane.prepare(net, opt, servers=["127.0.0.1:5600"])
    with pytest.raises(InputError, match="there is no sync 'ring'; use allreduce or ps"):
        bytelane.prepare(net, opt, sync="ring")  # type: ignore[arg-type]
    assert not dist.is_initialized()
