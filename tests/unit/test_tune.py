"""policy="auto": it searches plans in the simulator, and says what it found."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bytelane
from bytelane.cluster import Cluster, Link
from bytelane.core import Observation, Wish
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import simulate
from bytelane.tune import AutoPlanner, Choice, choose
from bytelane.tune.auto import MOST_TRIALS, describe
from bytelane.tune.page import lines
from bytelane.tune.search import WORTH, Candidate, predict_s, rivals
from ranks import Pool
from training import make

MEGABYTE = 10**6


def job_of(ratio: float, layers: int = 12, rate: float = 60e6) -> Job:
    """Make a job whose computing takes this many times as long as its communication."""
    size = 2 * MEGABYTE
    seconds = ratio * layers * size / rate / layers
    return Job(
        "even",
        tuple(Layer(f"layer {i}", seconds / 3, 2 * seconds / 3) for i in range(layers)),
        tuple(Tensor(f"tensor {i}", size, (i,)) for i in range(layers)),
    )


CLUSTER = Cluster.star(2, Link(60e6, 1e-3, 1e-4))


@settings(max_examples=10)
@given(st.floats(0.2, 8), st.integers(2, 6))
def test_what_is_taken_is_never_predicted_to_be_slower_than_plain_buckets(
    ratio: float, layers: int
) -> None:
    job = job_of(ratio, layers)
    choice = choose(job, CLUSTER, version=7)
    assert choice.taken.iteration_s <= choice.plain.iteration_s
    assert choice.is_plain == (choice.scheduled.iteration_s * WORTH > choice.plain.iteration_s)
    assert choice.taken.plan.version == 7
    again = simulate(job, CLUSTER, choice.taken.plan, "interpreted")
    assert choice.taken.iteration_s == again.iteration_s
    assert choice.bound_s <= choice.taken.iteration_s * (1 + 1e-9)


def test_where_both_take_as_long_the_order_of_need_wins() -> None:
    choice = choose(job_of(1.0), CLUSTER, version=1)
    assert not choice.is_plain
    assert choice.plain.iteration_s / choice.taken.iteration_s > 1.1
    assert not choice.taken.plan.barrier


def test_where_computing_takes_far_longer_plain_buckets_are_taken() -> None:
    choice = choose(job_of(60.0), CLUSTER, version=1)
    assert choice.is_plain
    assert choice.taken.plan.policy == "buckets"
    assert choice.taken.plan.barrier


def test_plain_buckets_are_filled_in_the_order_of_the_gradients() -> None:
    job = job_of(60.0, layers=3)
    reversed_tensors = tuple(reversed(job.tensors))  # registered against the order of use
    plan = choose(msgspec.structs.replace(job, tensors=reversed_tensors), CLUSTER, 1).taken.plan
    sent = [part.tensor for operation in plan.operations for part in operation.parts]
    assert sent == [0, 1, 2]


def test_it_says_in_a_line_what_it_does() -> None:
    said: list[str] = []
    planner = AutoPlanner(said.append)
    plan = planner.plan(job_of(1.0), CLUSTER, 2)
    assert planner.choice is not None
    assert plan == planner.choice.taken.plan
    assert len(said) == 1
    assert " -> " in said[0]
    assert "units of" in said[0]
    assert "instead of plain buckets of" in said[0]
    planner.plan(job_of(60.0), CLUSTER, 3)
    assert "nothing to win here (compute-bound 59:1)" in said[1]
    planner.plan(job_of(0.001), CLUSTER, 4)
    assert "nothing to win here (network-bound" in said[2]


def test_without_a_measured_network_it_cannot_plan() -> None:
    with pytest.raises(InputError, match="needs a measured network"):
        AutoPlanner(print).plan(job_of(1.0))


@pytest.mark.parametrize(
    ("times_s", "wishes"),
    [
        ([1.0, 1.09, 0.91, 1.0], [Wish.NOTHING] * 4),
        ([1.0, 1.2, 1.2], [Wish.NOTHING, Wish.NOTHING, Wish.MEASURE_AND_PLAN]),
        ([1.0, 0.8, 0.8], [Wish.NOTHING, Wish.NOTHING, Wish.MEASURE_AND_PLAN]),
        ([1.0, 1.2, 1.0, 1.2, 1.0], [Wish.NOTHING] * 5),
    ],
)
def test_only_what_departs_twice_in_a_row_is_planned_again(
    times_s: list[float], wishes: list[Wish]
) -> None:
    planner = AutoPlanner(lambda _: None)
    planner.plan(job_of(1.0, layers=2), CLUSTER, 1)
    assert planner.choice is not None
    predicted_s = planner.choice.taken.iteration_s
    assert [planner.observe(seen(seconds * predicted_s)) for seconds in times_s] == wishes
    planner.plan(job_of(1.0, layers=2), CLUSTER, 2)
    # The first under a new plan is the measure.
    assert planner.observe(seen(0.5 * predicted_s)) is Wish.NOTHING
    assert planner.observe(seen(0.5 * predicted_s)) is Wish.NOTHING


def seen(iteration_s: float) -> Observation:
    return Observation(step=10, plan_version=1, iteration_s=iteration_s)


def taken_by(planner: AutoPlanner) -> Candidate:
    assert planner.choice is not None
    return planner.choice.taken


def try_all(planner: AutoPlanner, job: Job, times_s: dict[str, float]) -> list[str]:
    """Let iterations take these times under the plans of these names, until no other is wished."""
    tried = []
    for version in range(2, 10):
        tried.append(taken_by(planner).name)
        if planner.observe(seen(times_s.get(tried[-1], 1e9))) is Wish.NOTHING:
            return tried
        assert planner.plan(job, CLUSTER, version).version == version
    raise AssertionError("it never ends")


def planned(said: list[str], job: Job) -> AutoPlanner:
    planner = AutoPlanner(said.append)
    planner.plan(job, CLUSTER, 1)
    return planner


def test_a_prediction_that_was_too_short_lets_larger_units_be_tried() -> None:
    said: list[str] = []
    planner = planned(said, job := job_of(1.0, layers=8))
    first = taken_by(planner)
    tried = try_all(planner, job, {first.name: 1.5 * first.iteration_s})
    # Nothing was better, so it is as it was; and it is left at that.
    assert [tried[0], tried[-1]] == [first.name] * 2
    assert taken_by(planner) is first
    assert len(set(tried)) == len(tried) - 1 <= MOST_TRIALS
    others = tried[1:-1]
    assert any(name.startswith("units of") for name in others)
    assert "instead of" in said[1]
    assert all(name in said[1] for name in others)
    assert said[2].endswith(f"taking {first.name}")
    assert len(said) == 3


@pytest.mark.parametrize("kind", ["units of", "plain buckets"])
def test_what_was_best_for_real_is_taken(kind: str) -> None:
    said: list[str] = []
    planner = planned(said, job := job_of(1.0, layers=8))
    first = taken_by(planner)
    slow = {first.name: 1.5 * first.iteration_s}
    candidates = try_all(planned([], job), job, slow)[1:-1]
    best = next(name for name in candidates if name.startswith(kind))
    tried = try_all(planner, job, {**slow, best: 1.4 * first.iteration_s})
    assert tried[-1] == best == taken_by(planner).name
    assert said[-1].endswith(f"taking {best}")
    assert taken_by(planner).plan.barrier == (kind == "plain buckets")


def test_what_is_predicted_to_take_longer_than_this_does_is_not_tried() -> None:
    planner = planned([], job := job_of(1.0, layers=8))
    first = taken_by(planner)
    assert planner.choice is not None
    takes_s = 1.06 * first.iteration_s
    assert takes_s < planner.choice.plain.iteration_s
    tried = try_all(planner, job, {first.name: takes_s})
    assert not any(name.startswith("plain") for name in tried)


def test_computing_that_is_slow_beside_communication_changes_the_choice() -> None:
    planner = planned([], job_of(1.0, layers=8))
    first = taken_by(planner)
    much_slower = job_of(60.0, layers=8)
    takes_s = 1.1 * predict_s(much_slower, CLUSTER, first.plan)
    wanted = choose(much_slower, CLUSTER, 2).taken
    assert wanted.name.startswith("plain")
    tried = try_all(planner, much_slower, {first.name: takes_s, wanted.name: wanted.iteration_s})
    assert tried[1] == tried[-1] == wanted.name


def test_where_nothing_else_is_promising_the_plan_stays() -> None:
    said: list[str] = []
    planner = planned(said, job_of(1.0, layers=8))
    first = taken_by(planner)
    # Computing turns out to be so slow that everything would take longer than this has.
    assert planner.observe(seen(1.1 * first.iteration_s)) is Wish.CORRECT
    assert not planner.plan(job_of(9.0, layers=8), CLUSTER, 2).barrier
    assert taken_by(planner) is first
    assert planner.observe(seen(1.1 * first.iteration_s)) is Wish.NOTHING
    assert len(said) == 1


@pytest.mark.parametrize("tried", [1, 2, 3])
def test_a_trial_ends_when_the_model_changes(tried: int) -> None:
    planner = planned([], job := job_of(1.0, layers=8))
    for version in range(2, 2 + tried):
        assert planner.observe(seen(1.5 * taken_by(planner).iteration_s)) is Wish.CORRECT
        if version < 1 + tried:
            planner.plan(job, CLUSTER, version)
    # A layer is frozen: nothing that was planned before fits.
    other = job_of(1.0, layers=7)
    plan = planner.plan(other, CLUSTER, 9)
    assert plan.tensor_bytes == tuple(tensor.bytes for tensor in other.tensors)
    assert taken_by(planner).plan == choose(other, CLUSTER, 9).taken.plan
    # And it may be tried again.
    assert planner.observe(seen(1.5 * taken_by(planner).iteration_s)) is Wish.CORRECT


def test_the_same_units_in_another_order_are_a_rival() -> None:
    job, slow = job_of(1.0, layers=8), job_of(1.4, layers=8)
    running, now = choose(job, CLUSTER, 1).taken, choose(slow, CLUSTER, 2)
    operations = running.plan.operations
    backwards = msgspec.structs.replace(running.plan, operations=operations[::-1])
    choice = msgspec.structs.replace(now, taken=msgspec.structs.replace(running, plan=backwards))
    found = rivals(slow, CLUSTER, choice, running)
    assert found[0].plan.operations == operations[::-1]
    assert found[0].name == f"{running.name}, in another order"
    assert operations not in [rival.plan.operations for rival in found]


@pytest.fixture(scope="module")
def choice() -> Choice:
    return choose(job_of(1.0, layers=4), CLUSTER, 1)


def test_the_page_at_the_end_sets_real_beside_predicted(
    choice: Choice,
) -> None:
    text = "\n".join(lines(choice, iteration_s=0.2, busy_s=0.15))
    for word in ("iteration", "computing alone", "lower bound", "plain buckets", "scheduled"):
        assert word in text
    assert "25 % of an iteration" in text
    assert f"done: {choice.taken.name}" in text
    assert "idle" not in "\n".join(lines(choice, 0.2, None))
    changed = "\n".join(lines(choice, 0.2, None, replanned="fifo"))
    assert f"done: policy fifo, as replan() has asked, instead of {choice.taken.name}" in changed


def test_what_is_said_at_the_end_is_the_page_or_nothing() -> None:
    planner = AutoPlanner(lambda _: None)
    assert planner.summarise(seen(0.2)) == ""
    planner.plan(job_of(1.0, layers=4), CLUSTER, 1)
    assert planner.summarise(msgspec.structs.replace(seen(0.2), iteration_s=None)) == ""
    assert planner.summarise(seen(0.2)).startswith("how it went\n  iteration")
    assert "done: policy fifo, as replan() has asked" in planner.summarise(seen(0.2), "fifo")


def test_the_line_of_a_job_without_communication_can_be_said(choice: Choice) -> None:
    plain = msgspec.structs.replace(choice.plain, communication_s=0.0)
    alone = msgspec.structs.replace(choice, taken=plain, plain=plain)
    assert "compute-bound inf:1" in describe(alone)


@pytest.mark.parametrize("knob", ["partition", "credit", "barrier"])
def test_what_auto_chooses_cannot_be_given(two_ranks: Pool, knob: str) -> None:
    with pytest.raises(InputError, match=f"{knob} has no effect under policy auto"):
        bytelane.prepare(*make(), **{knob: 1})
