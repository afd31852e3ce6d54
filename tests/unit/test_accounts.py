"""The slack of tensors, the idle time of computing and links, and the bytes that links carry."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import Jitter, Simulation, simulate
from bytelane.sim.accounts import (
    accounts,
    accounts_by_iteration,
    link_traffic,
    messages,
    workers_accounts,
)
from bytelane.sim.slack import Slack, layer_slack, tensor_slack
from bytelane.sim.steady import by_stage, steady
from strategies import jobs

SECOND = 8
"""Bytes that occupy a link for a second."""

eighths = st.integers(0, 8).map(lambda n: n / 8)
ways = [(s, p) for s in ("allreduce", "ps") for p in policies_for(s) if p != "optimal"]


def three_layers() -> Job:
    """The job of the cases worked by hand: 1 s for everything, 2, 2 and 3 s on the link."""
    layers = tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3))
    sizes = (2 * SECOND, 2 * SECOND, 3 * SECOND)
    return Job("three", layers, tuple(Tensor(f"t{i}", s, (i,)) for i, s in enumerate(sizes)))


def simulated(
    job: Job,
    way: tuple[str, str],
    *,
    theta: float = 0.0,
    lam: float = 0.0,
    workers: int = 2,
    slow: float = 1.0,
    **changes: Any,
) -> Simulation:
    """Two workers put every byte on the link once, in each direction with parameter servers."""
    sync, name = way
    values = {
        "servers": workers if sync == "ps" else 0,
        "compute_factors": (*(1.0,) * (workers - 1), slow) if slow > 1 else (),
    }
    # Of two hosts with a server each, half of what is pushed stays at home.
    rate = SECOND if sync == "allreduce" else SECOND / 2
    cluster = Cluster.star(workers, Link(rate, theta, lam), **(values | changes))
    knobs = Knobs(SECOND, SECOND, 5 * SECOND)
    return simulate(job, cluster, make_policy(name, job, cluster, knobs), "interpreted")


simulations = st.builds(
    simulated,
    jobs(),
    st.sampled_from(ways),
    theta=eighths,
    lam=eighths,
    workers=st.sampled_from([2, 3]),
    slow=st.sampled_from([1.0, 1.5]),
)


def rows(slack: Slack) -> list[tuple[float, ...]]:
    assert not slack.spread_s.any()
    return list(zip(*(column.tolist() for column in slack[1:-1]), strict=True))


# Worked by hand: ready, arrived, needed, used


def test_with_a_barrier_all_tensors_are_needed_when_forward_could_begin() -> None:
    # Backward is over at 6. The link carries layer 2 from 4 to 7, then 1 and 0 until 9 and 11.
    slack = layer_slack(simulated(three_layers(), ("allreduce", "fifo")))
    assert rows(slack) == [(6, 11, 6, 11), (5, 9, 6, 11), (4, 7, 6, 11)]
    assert slack.budget_s.tolist() == [0, 1, 2]
    assert slack.slack_s.tolist() == [0, 2, 4]
    assert slack.waiting_s.tolist() == [5, 5, 5]


def test_without_one_each_tensor_is_needed_by_its_own_layer() -> None:
    # Forward waits a second for layer 2, so backward is over at 7. In slices of a second the link
    # carries 2 from 5, 1 from 6, all of 0 from 7 to 9, the rest of 1 until 10 and of 2 until 12.
    slack = layer_slack(simulated(three_layers(), ("allreduce", "p3")))
    assert rows(slack) == [(7, 9, 7, 9), (6, 10, 10, 10), (5, 12, 11, 12)]
    assert slack.budget_s.tolist() == [0, 4, 6]
    assert slack.slack_s.tolist() == [0, 0, 0]
    assert slack.waiting_s.tolist() == [2, 0, 1]


def test_with_a_parameter_server_a_tensor_has_arrived_when_it_was_pulled() -> None:
    # Pushes end at 7, 9 and 11, and each pull takes as long as its push: 7-10, 10-12, 12-14.
    slack = layer_slack(simulated(three_layers(), ("ps", "fifo")))
    assert rows(slack) == [(6, 14, 6, 14), (5, 12, 6, 14), (4, 10, 6, 14)]


def test_latency_counts_until_the_end_is_known() -> None:
    slack = layer_slack(simulated(three_layers(), ("allreduce", "fifo"), lam=0.5))
    assert slack.arrived_s.tolist() == [11.5, 9.5, 7.5]
    assert slack.slack_s.tolist() == [0, 2, 4]


def test_the_update_is_the_first_use_and_a_layer_waits_for_its_last_tensor() -> None:
    layers = (Layer("a", 1.0, 1.0, 0.5), Layer("b", 1.0, 1.0))
    tensors = (Tensor("b", SECOND, (1,)), Tensor("a1", SECOND, (0,)), Tensor("a2", SECOND, (0, 1)))
    found = simulated(Job("j", layers, tensors, 0.25), ("allreduce", "bytescheduler"))
    # Backward is over at 4; b travels from 3 to 4, a1 and a2 until 6. Loading data takes 0.25.
    assert rows(tensor_slack(found)) == [(3, 4, 7.5, 7.5), (4, 5, 4.25, 6), (4, 6, 4.25, 6)]
    by_layer = layer_slack(found)
    assert by_layer.layer.tolist() == [0, 1]
    assert rows(by_layer) == [(4, 6, 4.25, 6), (3, 4, 7.5, 7.5)]


def test_idle_time_and_bytes_of_the_three_layers() -> None:
    found = simulated(three_layers(), ("allreduce", "fifo"))
    used = accounts(found)
    assert used == ((6, 5, 0), (7, 4, 0), (7, 4, 0))
    assert used.compute.busy_share == pytest.approx(6 / 11)
    pushed = accounts(simulated(three_layers(), ("ps", "fifo")))
    assert pushed == ((6, 8, 0), (7, 7, 0), (7, 7, 0))


def test_overhead_occupies_a_link_but_carries_nothing() -> None:
    found = simulated(three_layers(), ("allreduce", "fifo"), theta=0.5)
    assert accounts(found).up.busy_s == 8.5
    assert messages(found).up_bytes.sum() == 7 * SECOND


def test_a_slow_worker_is_never_idle_and_the_others_wait_for_it() -> None:
    found = simulated(three_layers(), ("allreduce", "fifo"), slow=2.0)
    first, last = workers_accounts(found)
    assert (first.compute.busy_s, last.compute.busy_s) == (6, 12)
    assert first.compute.idle_s == last.compute.idle_s + 6
    assert first.up == last.up


# What holds always


@given(simulations)
def test_gradients_are_ready_before_they_arrive_and_arrive_before_they_are_used(
    found: Simulation,
) -> None:
    for worker in range(found.cluster.workers):
        slack = tensor_slack(found, worker)
        assert (slack.ready_s < slack.arrived_s).all()
        assert (slack.arrived_s <= slack.used_s).all()
        assert (slack.budget_s >= 0).all()
        assert (slack.waiting_s >= 0).all()
        taken = slack.arrived_s - slack.ready_s
        assert slack.slack_s == pytest.approx(slack.budget_s + slack.waiting_s - taken)


@given(simulations)
def test_every_worker_sends_what_it_has_made_itself(found: Simulation) -> None:
    for worker in range(found.cluster.workers):
        launched = steady(found, worker).launched[0, found.pieces.operation]
        assert (launched >= tensor_slack(found, worker).ready_s[found.pieces.tensor]).all()


@given(simulations)
def test_computing_waits_for_somebody_whose_slack_is_zero(found: Simulation) -> None:
    slack = tensor_slack(found)
    for used_s in set(slack.used_s[slack.waiting_s > 0].tolist()):
        assert slack.slack_s[slack.used_s == used_s].min() == 0


@given(simulations)
def test_all_waiting_is_before_uses_and_is_the_idle_time_of_computing(found: Simulation) -> None:
    assume(not found.cluster.compute_factors)  # workers that differ may take long to be in step
    slack = layer_slack(found)
    # With a barrier there is one wait, which every layer has.
    waiting_s = slack.waiting_s[:1] if found.schedule.barrier else slack.waiting_s
    assert accounts(found).compute.idle_s == pytest.approx(waiting_s.sum(), abs=1e-9)


@given(simulations)
def test_a_layer_is_its_tensors_together(found: Simulation) -> None:
    tensors, layers = tensor_slack(found), layer_slack(found)
    assert layers.layer.tolist() == sorted(set(tensors.layer.tolist()))
    for k, layer in enumerate(layers.layer.tolist()):
        own = tensors.layer == layer
        assert layers.arrived_s[k] == tensors.arrived_s[own].max()
        assert layers.slack_s[k] == tensors.slack_s[own].min()
        assert set(tensors.budget_s[own].tolist()) == {layers.budget_s[k]}


@given(simulations)
def test_the_trace_tells_the_same_arrivals(found: Simulation) -> None:
    trace = found.trace
    start_s = trace.iteration_start_s[1]
    slack = layer_slack(found)
    for layer, arrived_s in zip(slack.layer.tolist(), slack.arrived_s.tolist(), strict=True):
        ends = [
            span.end_s - start_s
            for span in trace.spans
            if span.kind == "transfer" and span.iteration == 1 and layer in span.layers
        ]
        assert max(ends) == pytest.approx(arrived_s)


@given(simulations)
def test_busy_and_idle_are_the_iteration(found: Simulation) -> None:
    assert found.log is not None
    factors = found.cluster.compute_factors or (1.0,) * found.cluster.workers
    inside_s = found.job.compute_s - found.job.outside_s
    for worker, (factor, used) in enumerate(zip(factors, workers_accounts(found), strict=True)):
        own = worker if found.cluster.compute_factors else 0
        start_s, end_s = found.log.iteration_start[own, -3:-1].tolist()
        for use in used:
            assert use.busy_s + use.idle_s == pytest.approx(end_s - start_s)
            assert use.idle_s >= -1e-9
        assert used.compute.busy_s == pytest.approx(factor * inside_s + found.job.outside_s)
        assert used.up.busy_s <= found.communication_s * (1 + 1e-9)
        if not (found.schedule.fusion_bytes or found.cluster.sync == "ps"):  # no message is shared
            assert used.up.busy_s == pytest.approx(found.communication_s)


@given(simulations)
def test_a_link_carries_its_messages_while_it_is_busy_and_no_faster_than_it_can(
    found: Simulation,
) -> None:
    assume(not found.cluster.compute_factors)
    for worker, used in enumerate(workers_accounts(found)):
        sent = messages(found, worker)
        for use, sizes in ((used.up, sent.up_bytes), (used.down, sent.down_bytes)):
            mine = sizes > 0
            spans = set(zip(sent.start_s[mine].tolist(), sent.end_s[mine].tolist(), strict=True))
            assert use.busy_s == pytest.approx(sum(end - start for start, end in spans))
            assert sizes.sum() <= found.cluster.link.rate * use.busy_s * (1 + 1e-9)


# Bytes


@given(simulations)
def test_a_worker_sends_and_receives_every_tensor_once(found: Simulation) -> None:
    cluster, size = found.cluster, found.job.total_bytes
    sent = messages(found)
    own = cluster.wire_factor * size
    assert sent.up_bytes.sum() == pytest.approx(own)
    assert sent.down_bytes.sum() == pytest.approx(own)
    (host,) = link_traffic(found.job, cluster)
    # The server beside a worker sends as much as the worker does.
    assert host.up_bytes == pytest.approx(own * (2 if cluster.sync == "ps" else 1))


@given(
    st.integers(1, 9), st.integers(1, 9), st.sampled_from(["allreduce", "beside", "apart"]), jobs()
)
def test_what_some_send_others_receive(
    workers: int, servers: int, arrangement: str, job: Job
) -> None:
    count = {"allreduce": 0, "beside": workers, "apart": servers}[arrangement]
    cluster = Cluster.star(workers, Link(1.0), count, arrangement != "apart")
    traffic = link_traffic(job, cluster)
    assert sum(link.hosts for link in traffic) == workers + (servers * (arrangement == "apart"))
    sent = sum(link.hosts * link.up_bytes for link in traffic)
    assert sent == pytest.approx(sum(link.hosts * link.down_bytes for link in traffic))
    busiest = max(max(link.up_bytes, link.down_bytes) for link in traffic)
    beside = 2 if arrangement == "beside" else 1
    assert busiest == pytest.approx(beside * cluster.wire_factor * job.total_bytes)


@given(jobs(), st.sampled_from([policy for sync, policy in ways if sync == "ps"]), eighths)
def test_a_shared_link_carries_all_that_its_host_sends_and_no_faster_than_it_can(
    job: Job, policy: str, theta: float
) -> None:
    found = simulated(job, ("ps", policy), theta=theta, workers=3, shared_link=True)
    used, sent, (host,) = accounts(found), messages(found), link_traffic(job, found.cluster)
    assert used.up == used.down
    assert used.up.busy_s == pytest.approx(found.communication_s)
    assert sent.up_bytes.sum() == pytest.approx(host.up_bytes)
    assert sent.down_bytes.sum() == pytest.approx(host.down_bytes)
    assert host.up_bytes <= found.cluster.link.rate * used.up.busy_s * (1 + 1e-9)


def test_a_server_of_many_workers_carries_more_than_any_of_them() -> None:
    job, link = three_layers(), Link(SECOND)
    cluster = Cluster.star(6, link, servers=2, colocated=False)
    worker, server = link_traffic(job, cluster)
    assert (worker.host, worker.hosts, worker.up_bytes) == ("worker", 6, 56)
    assert (server.host, server.hosts, server.down_bytes) == ("server", 2, 168)
    found = simulate(job, cluster, make_policy("fifo", job, cluster), "interpreted")
    # The server's link is full for 21 s; each worker's carries 56 bytes in that time.
    assert accounts(found).up.busy_s == 21
    assert messages(found).up_bytes.sum() == 56


# Corners


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_one_worker_sends_nothing_and_waits_for_nothing(policy: str) -> None:
    found = simulated(three_layers(), ("allreduce", policy), workers=1)
    slack = tensor_slack(found)
    assert (slack.arrived_s == slack.ready_s).all()
    assert (slack.slack_s == slack.budget_s).all()
    assert accounts(found) == ((6, 0, 0), (0, 6, 0), (0, 6, 0))
    assert messages(found).start_s.size == 0
    assert [link.up_bytes for link in link_traffic(found.job, found.cluster)] == [0]


def test_a_job_without_tensors_has_no_slack_to_speak_of() -> None:
    found = simulated(Job("bare", (Layer("a", 1.0, 1.0),), ()), ("allreduce", "bytescheduler"))
    assert layer_slack(found).layer.size == 0
    assert accounts(found) == ((2, 0, 0), (0, 2, 0), (0, 2, 0))


def test_the_optimum_has_accounts_but_no_slack() -> None:
    job, cluster = three_layers(), Cluster.star(2, Link(SECOND))
    found = simulate(job, cluster, make_policy("optimal", job, cluster))
    assert accounts(found) == ((6, 3, 0), (7, 2, 0), (7, 2, 0))
    for ask in (tensor_slack, layer_slack, messages):
        with pytest.raises(InputError, match="neither transfers nor slack"):
            ask(found)


# With jitter


def shaken(name: str = "fifo", sync: str = "allreduce", seed: int = 0) -> Simulation:
    job, cluster = three_layers(), Cluster.star(3, Link(SECOND), servers=3 if sync == "ps" else 0)
    policy = make_policy(name, job, cluster, Knobs(SECOND, SECOND, 5 * SECOND))
    return simulate(job, cluster, policy, "interpreted", Jitter(0.3, seed))


@settings(max_examples=20)
@given(st.sampled_from(ways), st.integers(0, 9), st.integers(0, 2))
def test_with_jitter_books_are_means_over_the_measured_iterations(
    way: tuple[str, str], seed: int, worker: int
) -> None:
    sync, name = way
    found = shaken(name, sync, seed)
    each, mean = accounts_by_iteration(found, worker), accounts(found, worker)
    assert found.log is not None
    # Half of 64 are measured; of the last one the end was not seen.
    lengths = np.diff(found.log.iteration_start, axis=1)[worker, 32:63]
    assert [one.compute.busy_s + one.compute.idle_s for one in each] == pytest.approx(lengths)
    assert min(use.idle_s for one in each for use in one) >= -1e-9
    for use, uses in zip(mean, zip(*each, strict=True), strict=True):
        assert use.busy_s + use.idle_s == pytest.approx(lengths.mean())
        assert use.busy_s == pytest.approx(np.mean([one.busy_s for one in uses]))
        assert use.spread_s == pytest.approx(np.std([one.idle_s for one in uses]))


@settings(max_examples=20)
@given(st.sampled_from(ways), st.integers(0, 9), st.integers(0, 2))
def test_with_jitter_a_life_is_the_mean_of_many_and_has_a_spread(
    way: tuple[str, str], seed: int, worker: int
) -> None:
    sync, name = way
    found = shaken(name, sync, seed)
    assert found.log is not None
    tensors, layers = tensor_slack(found, worker), layer_slack(found, worker)
    for slack in (tensors, layers):
        assert (slack.slack_s >= 0).all()
        assert (slack.waiting_s >= 0).all()
    # Of each tensor the last piece, from iteration to iteration, without the machinery.
    starts = found.log.iteration_start[worker, 32:63]
    known = by_stage(found, found.log.known[1:-1], worker)[:, -1]
    arrived = np.full((31, 3), -np.inf)
    np.maximum.at(arrived, (slice(None), found.pieces.tensor), known[:, found.pieces.operation])
    assert tensors.arrived_s == pytest.approx((arrived - starts[:, None]).mean(axis=0))
    assert layers.arrived_s == pytest.approx(tensors.arrived_s)  # here each layer has one
    assert layers.spread_s == pytest.approx(tensors.spread_s)
    # Step 0 or 2k of the following iteration is the first use.
    opens = np.zeros(3, dtype=int) if found.schedule.barrier else 2 * np.arange(3)
    used = found.log.step_start[2:, worker][:, opens]
    assert tensors.spread_s == pytest.approx((used - arrived).std(axis=0), abs=1e-9)


def test_with_jitter_the_trace_and_the_plan_are_of_the_last_iterations() -> None:
    found = shaken()
    assert {span.iteration for span in found.trace.spans} == {0, 1, 2}
    assert found.trace.iteration_start_s[0] == 0
    lengths = np.diff([*found.trace.iteration_start_s.values()])
    assert found.log is not None
    assert lengths == pytest.approx(np.diff(found.log.iteration_start[0, -4:]))
    launched = [operation.parts[0].tensor for operation in found.plan().operations]
    assert launched == np.argsort(found.log.sending[-3]).tolist()


def test_a_worker_that_is_not_there_is_refused() -> None:
    found = simulated(three_layers(), ("allreduce", "fifo"))
    for worker in (-1, 2):
        with pytest.raises(InputError, match=f"no worker {worker}; they are numbered 0 to 1"):
            tensor_slack(found, worker)
