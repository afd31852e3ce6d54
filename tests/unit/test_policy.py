"""Policies are data, known by name."""

from collections.abc import Callable
from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bytelane
from bytelane.cluster import Cluster, Collective, Link
from bytelane.core import (
    CreditWindow,
    Cutting,
    Groups,
    Knobs,
    Parts,
    Policy,
    Stage,
    Units,
    choose_knobs,
    make_policy,
    policies_for,
    policy_names,
    register,
)
from bytelane.core.policy import _registry
from bytelane.errors import InputError, UnknownPolicy
from bytelane.job import Job, Layer, Tensor
from bytelane.knob import FAMILIAR
from bytelane.sim import simulate
from strategies import jobs

JOB = Job(
    "tied",
    tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3)),
    (Tensor("embedding", 100, (0, 2)), Tensor("middle", 30, (1,)), Tensor("last", 7, (2,))),
)
LINK = Link(10.0, 0.1, 0.2)
ALL_REDUCE = Cluster.star(2, LINK)
SERVERS = Cluster.star(2, LINK, servers=2)


def test_fifo_sends_whole_tensors_without_limit_behind_a_barrier() -> None:
    policy = make_policy("fifo", JOB, ALL_REDUCE)
    assert policy.stages == (Stage("all-reduce", (0, 0, 0), CreditWindow(None)),)
    assert policy.cutting == Parts()
    assert policy.barrier


def test_bytescheduler_ranks_tensors_by_the_layer_that_needs_them_first() -> None:
    policy = make_policy("bytescheduler", JOB, ALL_REDUCE, Knobs(40, 80))
    assert policy.stages == (Stage("all-reduce", (0, 1, 2), CreditWindow(80)),)
    assert policy.cutting == Parts(40)
    assert not policy.barrier


def test_with_servers_every_piece_is_pushed_and_pulled() -> None:
    push, pull = make_policy("bytescheduler", JOB, SERVERS).stages
    assert (push.collective, pull.collective) == ("push", "pull")
    assert push.priority == pull.priority == (0, 1, 2)
    assert not pull.after_all


def test_dear_scatters_in_ready_order_and_gathers_in_the_order_of_need() -> None:
    policy = make_policy("dear", JOB, ALL_REDUCE, Knobs(fusion_bytes=37))
    scatter, gather = policy.stages
    assert (scatter.collective, gather.collective) == ("reduce-scatter", "all-gather")
    assert (scatter.after_all, gather.after_all) == (False, True)
    assert (scatter.priority, gather.priority) == ((0, 0, 0), (0, 1, 2))
    assert policy.cutting == Groups(
        (1, 0, 0)
    )  # last and middle fit together, the embedding is too large


def test_fsdp_groups_by_layer() -> None:
    assert make_policy("fsdp", JOB, ALL_REDUCE).cutting == Groups((2, 1, 0))


@pytest.mark.parametrize("name", ["tic", "tac"])
def test_tictac_orders_pulls_after_all_pushes(name: str) -> None:
    push, pull = make_policy(name, JOB, SERVERS).stages
    assert push.priority == (0, 0, 0)
    assert pull.after_all
    assert sorted(range(3), key=pull.priority.__getitem__) == [0, 1, 2]


def test_random_pulls_after_all_pushes_in_one_order_per_seed() -> None:
    def order(seed: int) -> tuple[int, ...]:
        knobs = choose_knobs("random", permutation=seed)
        push, pull = make_policy("random", JOB, SERVERS, knobs).stages
        assert push.priority == (0, 0, 0)
        assert pull.after_all
        return pull.priority

    assert [order(seed) for seed in range(50)] == [order(seed) for seed in range(50)]
    assert {order(seed) for seed in range(50)} == {*permutations(range(3))}


def test_the_seed_of_a_simulation_is_that_of_the_random_order() -> None:
    where = {"policy": "random", "sync": "ps", "bandwidth": "1Gbit"}
    found = [bytelane.simulate("alexnet", seed=seed, **where) for seed in (0, 1, 2)]
    given = [bytelane.simulate("alexnet", permutation=seed, **where) for seed in (0, 1, 2)]
    assert [one.iteration_s for one in found] == [one.iteration_s for one in given]
    assert len({one.iteration_s for one in found}) > 1


def test_a_policy_without_meaning_for_the_way_of_synchronising_is_refused() -> None:
    with pytest.raises(InputError, match=r"policy dear has no meaning for ps; these have: .*tac"):
        make_policy("dear", JOB, SERVERS)
    with pytest.raises(InputError, match="policy tac has no meaning for allreduce"):
        make_policy("tac", JOB, ALL_REDUCE)
    assert set(policies_for("ps")) | set(policies_for("allreduce")) == set(policy_names())


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownPolicy, match=r"did you mean bytescheduler\?"):
        make_policy("byteschedule", JOB, ALL_REDUCE)
    with pytest.raises(UnknownPolicy, match="there are sequential, fifo, fusion"):
        choose_knobs("zzz")


def test_knobs_are_the_policys_own_unless_given() -> None:
    assert choose_knobs("p3") == Knobs(160_000, 160_000)
    assert choose_knobs("p3", partition_bytes=50) == Knobs(50, 50)
    assert choose_knobs("bytescheduler", partition_bytes=100) == Knobs(100, 200)
    assert choose_knobs("bytescheduler", credit_bytes=7) == Knobs(4 * 2**20, 7)
    assert choose_knobs("fusion", fusion_bytes=9) == Knobs(fusion_bytes=9)
    assert choose_knobs("fifo") == Knobs()


@pytest.mark.parametrize(
    ("name", "knob"),
    [("fifo", "partition"), ("fusion", "credit"), ("p3", "fusion"), ("optimal", "partition")],
)
def test_a_knob_without_effect_is_refused(name: str, knob: str) -> None:
    with pytest.raises(InputError, match=f"{knob} has no effect under policy {name}"):
        choose_knobs(name, **{f"{knob}_bytes": 10})


def test_a_policy_of_ones_own_is_as_good_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytelane.core.policy._registry", dict(_registry))

    @register("smallest-first", sync=("allreduce",))
    def smallest_first(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
        sizes = tuple(tensor.bytes for tensor in job.tensors)
        return Policy("smallest-first", (Stage("all-reduce", sizes),), barrier=True)

    assert "smallest-first" in policy_names()
    assert make_policy("smallest-first", JOB, ALL_REDUCE).stages[0].priority == (100, 30, 7)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match="already a policy"):
        register("fifo")(lambda job, cluster, knobs: make_policy("fifo", job, cluster, knobs))


@pytest.mark.parametrize("field", [knob.key for knob in FAMILIAR])
@pytest.mark.parametrize("value", [0, -1, 2**63])
def test_knobs_must_be_positive_and_fit(field: str, value: int) -> None:
    with pytest.raises(InputError, match="must be 1 or more"):
        Knobs(**{field: value})


def test_a_credit_that_never_opens_is_refused() -> None:
    with pytest.raises(InputError, match="never opens"):
        CreditWindow(0)


@given(jobs())
def test_mg_wfbp_merges_neighbours_in_ready_order(job: Job) -> None:
    cutting = make_policy("mg-wfbp", job, ALL_REDUCE).cutting
    assert isinstance(cutting, Groups)
    groups = cutting.numbers
    order = sorted(range(len(groups)), key=lambda t: -job.tensors[t].complete_after)
    numbers = [groups[t] for t in order]
    assert numbers == sorted(numbers)
    assert sorted(set(numbers)) == list(range(len(set(numbers))))


def test_without_its_order_a_policy_keeps_pieces_and_window() -> None:
    parts = make_policy("bytescheduler", JOB, ALL_REDUCE, Knobs(40, 80))
    plain = parts.in_ready_order(JOB)
    assert plain.stages == (Stage("all-reduce", (2, 1, 0), CreditWindow(80)),)
    assert (plain.cutting, plain.barrier) == (Parts(40), False)
    units = make_policy("units", JOB, ALL_REDUCE, Knobs(50, 80)).in_ready_order(JOB)
    # Cut every 50 bytes, too, but from the gradient that is ready first.
    pieces = [[(p.tensor, p.start, p.stop) for p in unit] for unit in units.cut(JOB).sub_tasks()]
    assert pieces == [[(2, 0, 7), (1, 0, 30), (0, 0, 13)], [(0, 13, 63)], [(0, 63, 100)]]


@given(jobs(), st.sampled_from(policies_for("ps")))
def test_to_take_its_order_away_twice_changes_nothing_more(job: Job, name: str) -> None:
    once = make_policy(name, job, SERVERS).in_ready_order(job)
    assert once.in_ready_order(job) == once


def test_a_stage_names_a_collective_that_there_is() -> None:
    with pytest.raises(InputError, match="'allreduce' is no collective; use one of all-reduce, "):
        Stage("allreduce", (0,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("collective", "cluster", "words"),
    [
        ("push", ALL_REDUCE, "push has no meaning for a cluster that has no servers"),
        ("all-gather", SERVERS, "all-gather has no meaning for a cluster that has 2 servers"),
    ],
)
def test_a_collective_needs_its_cluster(
    collective: Collective, cluster: Cluster, words: str
) -> None:
    policy = Policy("mine", (Stage(collective, (0, 0, 0)),), barrier=True)
    with pytest.raises(InputError, match=words):
        simulate(JOB, cluster, policy, "interpreted")


@pytest.mark.parametrize(
    ("cutting", "complaint"),
    [
        (lambda: Parts(0), "a part of 0 bytes cannot hold anything; use 1 or more"),
        (lambda: Units(-1), "a unit of -1 bytes cannot hold anything"),
        (lambda: Units(8, first_bytes=0), "a first unit of 0 bytes cannot hold anything"),
        (lambda: Parts(2.5), "a part is 2.5; it must be a whole number"),
        (lambda: Policy("mine", (), barrier=True, cutting=(Parts(8), Groups(()))), "use one of"),  # type: ignore[arg-type]
        (lambda: Policy("mine", (), barrier=True, cutting=None), "policy mine is cut by None; use"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_cut_is_refused_when_it_is_made(
    cutting: Callable[[], object], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        cutting()


@pytest.mark.parametrize(
    "cutting", [Parts(), Parts(7), Units(9, 3, first_alone=True), Groups((0,))]
)
def test_a_cutting_says_which_one_it_is_when_it_is_written_down(cutting: Cutting) -> None:
    policy = Policy("mine", (), barrier=True, cutting=cutting)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy
