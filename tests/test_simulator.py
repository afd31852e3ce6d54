"""The simulator against cases worked by hand, against theory, and against a slow reference."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, Plan, make_policy
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import Simulation
from bytelane.sim import simulate as run_simulator
from reference import Chain, steady_state
from strategies import chains, jobs

# A link of 8 bytes a second between two workers: a byte takes 1/8 s, exactly.
RATE = 8.0
knob_values = st.builds(Knobs, st.integers(1, 40), st.integers(1, 80))
eighths = st.integers(0, 8).map(lambda n: n / 8)


def simulate(
    job: Job, name: str, knobs: Knobs, theta: float = 0.0, lam: float = 0.0, workers: int = 2
) -> Simulation:
    cluster = Cluster(workers, Link(RATE, theta, lam))
    return run_simulator(job, cluster, make_policy(name, job, knobs), "interpreted")


def three_layers() -> Job:
    """Forward and backward of 1 s each; the link needs 2, 2 and 3 s for the gradients."""
    return Job(
        "three",
        tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3)),
        tuple(Tensor(f"l{i}", seconds * 8, (i,)) for i, seconds in enumerate((2, 2, 3))),
    )


WHOLE_ONE_IN_FLIGHT = Knobs(partition_bytes=1000, credit_bytes=1)
SECOND = 8  # bytes that take a second


@pytest.mark.parametrize(
    ("name", "knobs", "theta", "lam", "seconds"),
    [
        ("fifo", Knobs(), 0.0, 0.0, 11),
        ("bytescheduler", WHOLE_ONE_IN_FLIGHT, 0.0, 0.0, 10),
        ("bytescheduler", Knobs(SECOND, 1 * SECOND), 0.0, 0.0, 9),
        ("fifo", Knobs(), 0.1, 0.2, 11.5),
        ("bytescheduler", Knobs(SECOND, 1 * SECOND), 0.1, 0.2, 11.1),
        ("bytescheduler", Knobs(SECOND, 2 * SECOND), 0.1, 0.2, 9.9),
        ("bytescheduler", Knobs(SECOND, 4 * SECOND), 0.1, 0.2, 11.9),
    ],
)
def test_cases_worked_by_hand(
    name: str, knobs: Knobs, theta: float, lam: float, seconds: float
) -> None:
    found = simulate(three_layers(), name, knobs, theta, lam)
    assert found.iteration_s == pytest.approx(seconds, rel=1e-9)


@given(chains(), knob_values, eighths, eighths, st.sampled_from(["fifo", "bytescheduler"]))
def test_the_slow_reference_agrees_exactly(
    job: Job, knobs: Knobs, theta: float, lam: float, name: str
) -> None:
    wire = [Fraction(0)] * len(job.layers)
    for tensor in job.tensors:
        wire[tensor.complete_after] = Fraction(tensor.bytes, 8)
    chain = Chain(
        [Fraction(layer.forward_s) for layer in job.layers],
        [Fraction(layer.backward_s) for layer in job.layers],
        wire,
    )
    fifo = name == "fifo"
    expected = steady_state(
        chain,
        name,
        theta=Fraction(theta),
        lam=Fraction(lam),
        part=None if fifo else Fraction(knobs.partition_bytes, 8),
        credit=None if fifo else Fraction(knobs.credit_bytes, 8),
    )
    assert simulate(job, name, knobs, theta, lam).iteration_s == float(expected)


@given(jobs(), knob_values, eighths, eighths, st.sampled_from(["fifo", "bytescheduler"]))
def test_no_schedule_beats_the_bound(
    job: Job, knobs: Knobs, theta: float, lam: float, name: str
) -> None:
    found = simulate(job, name, knobs, theta, lam)
    assert found.iteration_s >= found.bound_s - 1e-9
    assert found.bound_s == max(found.compute_s, found.communication_s)


@given(jobs(), knob_values, eighths, eighths)
def test_a_job_never_takes_longer_than_computing_and_sending_in_turn(
    job: Job, knobs: Knobs, theta: float, lam: float
) -> None:
    found = simulate(job, "bytescheduler", knobs, theta, lam)
    stalls = found.pieces.operation_count * lam
    assert found.iteration_s <= found.compute_s + found.communication_s + stalls + 1e-9


@given(jobs(), knob_values, eighths, eighths, st.sampled_from(["fifo", "bytescheduler"]))
def test_simulating_the_recorded_plan_gives_the_same_time(
    job: Job, knobs: Knobs, theta: float, lam: float, name: str
) -> None:
    found = simulate(job, name, knobs, theta, lam)
    again = run_simulator(job, found.cluster, found.plan(), "interpreted")
    assert again.iteration_s == found.iteration_s
    assert again.plan(7).version == 7


@given(jobs(), st.sampled_from(["fifo", "bytescheduler"]))
def test_one_worker_only_computes(job: Job, name: str) -> None:
    found = simulate(job, name, Knobs(), theta=1.0, lam=1.0, workers=1)
    assert found.communication_s == 0
    assert found.iteration_s == pytest.approx(job.compute_s)
    assert isinstance(found.plan(), Plan)
    assert not [span for span in found.trace.spans if span.kind == "transfer"]


@given(jobs(), knob_values, eighths, eighths, st.sampled_from(["fifo", "bytescheduler"]))
def test_the_trace_tells_a_possible_story(
    job: Job, knobs: Knobs, theta: float, lam: float, name: str
) -> None:
    trace = simulate(job, name, knobs, theta, lam).trace
    assume(job.tensors)
    computing = sorted((s.start_s, s.end_s) for s in trace.spans if s.kind != "transfer")
    assert all(end <= start for (_, end), (start, _) in pairwise(computing))
    done = {(s.kind, s.name, s.iteration): s for s in trace.spans}
    for tensor in job.tensors:
        mine = [
            s
            for s in trace.spans
            if s.kind == "transfer" and s.name.partition("@")[0] == tensor.name and s.iteration == 0
        ]
        gradient = done["backward", job.layers[tensor.complete_after].name, 0]
        assert sum(s.bytes for s in mine) == tensor.bytes
        assert min(s.start_s for s in mine) >= gradient.end_s
        use = done.get(("forward", job.layers[tensor.needed_by].name, 1))
        assert use is None or use.start_s >= max(s.end_s for s in mine)


@given(jobs(), knob_values)
def test_updates_and_time_outside_the_model_count(job: Job, knobs: Knobs) -> None:
    found = simulate(job, "bytescheduler", knobs)
    assert found.compute_s == pytest.approx(
        sum(a.forward_s + a.backward_s + a.update_s for a in job.layers) + job.outside_s
    )
