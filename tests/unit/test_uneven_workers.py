"""The simulator with workers that differ: by a factor, or by chance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bytelane.core import Knobs, make_policy
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import Jitter
from bytelane.sim import simulate as run_simulator
from exact_links import (
    cluster,
    eighths,
    knob_values,
    real_policies,
    server_policies,
    simulate,
    three_layers,
)
from strategies import jobs


# Two or four: with these the times on the link are exact, too, and ties stay ties.
@settings(max_examples=30)
@given(jobs(), knob_values, eighths, eighths, real_policies, st.sampled_from([2, 4]))
def test_simulating_each_of_equal_workers_is_simulating_one(
    job: Job, knobs: Knobs, theta: float, lam: float, name: str, workers: int
) -> None:
    where = cluster(theta, lam, workers=workers)
    policy = make_policy(name, job, where, knobs)
    alone = run_simulator(job, where, policy, "interpreted")
    each = run_simulator(job, where, policy, "interpreted", Jitter(0.0))
    assert each.iteration_s == pytest.approx(alone.iteration_s, rel=1e-12)


@settings(max_examples=30)
@given(jobs(), knob_values, eighths, eighths, server_policies)
def test_simulating_each_of_equal_workers_is_simulating_one_with_servers_too(
    job: Job, knobs: Knobs, theta: float, lam: float, name: str
) -> None:
    where = cluster(theta, lam, servers=2)
    policy = make_policy(name, job, where, knobs)
    alone = run_simulator(job, where, policy, "interpreted")
    each = run_simulator(job, where, policy, "interpreted", Jitter(0.0))
    assert each.iteration_s == pytest.approx(alone.iteration_s, rel=1e-12)


@given(jobs(), knob_values, real_policies, st.sampled_from([1.25, 2.0]))
def test_all_wait_for_the_slowest_worker(job: Job, knobs: Knobs, name: str, factor: float) -> None:
    where = cluster(workers=3)
    slow = where.with_compute_factors((1.0, factor, 1.0))
    all_slow = where.with_compute_factors((factor,) * 3)
    one = simulate(job, name, knobs, on=slow)
    everyone = simulate(job, name, knobs, on=all_slow)
    assert one.iteration_s == pytest.approx(everyone.iteration_s, rel=1e-12)
    assert one.compute_s == pytest.approx(everyone.compute_s)


def test_jitter_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    job, where = three_layers(), cluster(workers=4)
    policy = make_policy("fifo", job, where)
    first, again, other = (
        run_simulator(job, where, policy, "interpreted", Jitter(0.2, seed)) for seed in (1, 1, 2)
    )
    assert first.iteration_s == again.iteration_s != other.iteration_s
    assert first.spread_s > 0


def test_with_jitter_communication_is_a_mean_since_messages_are_fused_as_it_happens() -> None:
    job = Job(
        "many",
        tuple(Layer(f"l{i}", 1.0, 1.5) for i in range(8)),
        tuple(Tensor(f"t{i}", 8, (i,)) for i in range(8)),
    )
    where = cluster(theta=0.5, workers=2)
    policy = make_policy("fusion", job, where, Knobs(fusion_bytes=24))
    found = run_simulator(job, where, policy, "interpreted", Jitter(0.3))
    assert found.log is not None
    rows = zip(found.log.sending, found.log.sent, strict=True)
    messages = [set(zip(*(c.tolist() for c in row), strict=True)) for row in rows]
    busy = [sum(end - begin for begin, end in row) for row in messages]
    assert len(set(map(len, messages))) > 1
    assert found.communication_s == pytest.approx(sum(busy) / len(busy))


@pytest.mark.parametrize(("sigma", "seed"), [(-0.1, 0), (float("nan"), 0), (9.0, 0), (0.1, -1)])
def test_impossible_jitter_is_refused(sigma: float, seed: int) -> None:
    with pytest.raises(InputError):
        Jitter(sigma, seed)
