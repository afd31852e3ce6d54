"""Times without a trace: the same numbers as the simulator's, for tuners and sweeps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.cluster import Cluster
from bytelane.core import Knobs, Parts, Policy, make_policy, policies_for
from bytelane.core.kernel import reset
from bytelane.core.table import policy_state
from bytelane.job import Job
from bytelane.sim import evaluate, evaluate_each, evaluation
from bytelane.sim import simulate as run_simulator
from bytelane.sim.evaluation import times_each
from exact_links import (
    cluster,
    knob_values,
    three_layers,
)
from strategies import jobs

any_way = st.sampled_from([(sync, p) for sync in ("allreduce", "ps") for p in policies_for(sync)])


@given(
    jobs(),
    knob_values,
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    any_way,
    st.sampled_from([1.0, 1.5]),
)
def test_the_quick_evaluation_gives_the_same_time_to_the_last_bit(
    job: Job,
    knobs: Knobs,
    theta: float,
    lam: float,
    floor: float,
    way: tuple[str, str],
    slow: float,
) -> None:
    sync, name = way
    servers = 3 if sync == "ps" else 0
    where = cluster(theta, lam, floor, workers=3, servers=servers, compute_factors=(1.0, 1.0, slow))
    policy = make_policy(name, job, where, knobs)
    quick = evaluate(job, where, policy, "interpreted")
    assert quick == run_simulator(job, where, policy, "interpreted").iteration_s


@st.composite
def policy_runs(draw: st.DrawFn) -> tuple[Job, Cluster, list[Policy]]:
    """Policies as a tuner asks for them: some differ in their windows alone, some in all."""
    job, sync = draw(jobs()), draw(st.sampled_from(["allreduce", "ps"]))
    slow = draw(st.sampled_from([1.0, 1.0, 1.5]))
    servers = 3 if sync == "ps" else 0
    where = cluster(
        *(draw(st.floats(0, 1)) for _ in range(3)),
        workers=3,
        servers=servers,
        compute_factors=(1.0, 1.0, slow),
    )
    names = st.sampled_from(policies_for(sync))
    parts, windows = st.integers(1, 40), st.lists(st.integers(1, 80), min_size=1, max_size=3)
    asked = draw(st.lists(st.tuples(names, parts, windows), max_size=3))
    return (
        job,
        where,
        [
            make_policy(name, job, where, Knobs(part, credit, part))
            for name, part, in_flight in asked
            for credit in in_flight
        ],
    )


@given(policy_runs())
def test_many_evaluations_are_that_many_single_ones_to_the_last_bit(
    asked: tuple[Job, Cluster, list[Policy]],
) -> None:
    job, where, policies = asked
    alone = [run_simulator(job, where, policy, "interpreted") for policy in policies]
    seconds = evaluate_each(job, where, policies, "interpreted")
    assert seconds == [found.iteration_s for found in alone]
    times = list(times_each(job, where, iter(policies), "interpreted"))
    assert times == [(f.iteration_s, f.compute_s, f.communication_s) for f in alone]


@given(jobs(), knob_values, any_way, st.integers(1, 3))
def test_a_state_is_laid_out_as_a_reset_would_leave_it(
    job: Job, knobs: Knobs, way: tuple[str, str], workers: int
) -> None:
    sync, name = way
    policy = make_policy(name, job, cluster(servers=2 if sync == "ps" else 0), knobs)
    state = policy_state(policy, job, workers=workers, own_queues=sync == "ps")
    before = [column.copy() for column in state]
    reset(state)
    assert all(np.array_equal(old, new) for old, new in zip(before, state, strict=True))


def test_what_differs_in_its_windows_alone_is_laid_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid_out = []

    def watched(policy: Policy, *args: Any, **kind: Any) -> Any:
        laid_out.append(policy.cutting)
        return policy_state(policy, *args, **kind)

    monkeypatch.setattr(evaluation, "policy_state", watched)
    job, where = three_layers(), cluster(servers=2)
    knobs = [Knobs(part, credit) for part in (8, 4) for credit in (4, 8, 16)]
    policies = [make_policy("bytescheduler", job, where, one) for one in knobs]
    evaluate_each(job, where, policies, "interpreted")
    assert laid_out == [Parts(8), Parts(4)]
