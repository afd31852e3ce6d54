"""Policies that are wrong in one way each, and which rule of the contract has to notice."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from bytelane.cluster import Cluster
from bytelane.core import CreditWindow, Groups, Knobs, Parts, Pieces, Policy, Stage, Units
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.knob import CREDIT, FUSION, PARTITION

Maker = Callable[[Job, Cluster, Knobs], Policy]
REGISTERED: dict[Maker, dict[str, Any]] = {}
BREAKS: list[tuple[Maker, str]] = []


def breaks(rule: str, **registered: Any) -> Callable[[Maker], Maker]:
    """Keep a policy to be registered later, and the only rule that it must break."""

    def keep(maker: Maker) -> Maker:
        REGISTERED[maker] = registered
        BREAKS.append((maker, rule))
        return maker

    return keep


def need(job: Job) -> tuple[int, ...]:
    return tuple(tensor.needed_by for tensor in job.tensors)


def one_stage(job: Job, credit_bytes: int | None = None) -> tuple[Stage, ...]:
    return (Stage("all-reduce", need(job), CreditWindow(credit_bytes)),)


def right(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send in the order of need: nothing is wrong with this one."""
    return Policy("mutant", one_stage(job), barrier=False)


def right_but_choosy(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Refuse knobs that make no sense, which is right, too."""
    assert knobs.partition_bytes is not None
    if knobs.partition_bytes < 16:
        raise InputError(f"a partition of {knobs.partition_bytes} bytes is too small; use 16")
    return changed(job, cutting=Parts(knobs.partition_bytes))


def right_with_growing_units(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send what is needed first alone, in a small unit."""
    return changed(
        job,
        stages=one_stage(job, knobs.credit_bytes),
        cutting=Units(knobs.partition_bytes or 0, first_bytes=3, first_alone=True),
    )


REGISTERED |= {
    right: {},
    right_but_choosy: {"knobs": [PARTITION.with_default(16)]},
    right_with_growing_units: {"knobs": [PARTITION.with_default(16), CREDIT.with_default(2)]},
}


def changed(job: Job, **changes: Any) -> Policy:
    return msgspec.structs.replace(right(job, None, Knobs()), **changes)  # type: ignore[arg-type]


@breaks("test_it_says_in_one_line_what_it_does")
def without_docstring(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    return changed(job)


@breaks("test_it_is_made_for_every_job_and_cluster")
def fails_without_tensors(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Rank by the largest."""
    assert max(tensor.bytes for tensor in job.tensors)
    return changed(job)


@breaks("test_it_is_made_for_every_job_and_cluster")
def fails_on_one_worker(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Divide by the others."""
    assert 1 / (cluster.workers - 1)
    return changed(job)


@breaks("test_it_is_made_for_every_job_and_cluster")
def recurses(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Go down layer by layer."""

    def depth(layer: int) -> int:
        return 0 if layer == len(job.layers) else 1 + depth(layer + 1)

    assert depth(0)
    return changed(job)


@breaks("test_it_is_made_for_every_job_and_cluster")
def refuses_tied_weights(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Refuse what a job may be, although no knob was turned."""
    if any(len(tensor.layers) > 1 for tensor in job.tensors):
        raise InputError("tied weights are not supported")
    return changed(job)


@breaks("test_it_is_made_for_every_job_and_cluster", sync=())
def is_for_nothing(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Register for no way of synchronising."""
    return changed(job)


@breaks("test_it_is_plain_data")
def has_fractions(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Rank by seconds, all of which are cut off to the same integer."""
    seconds = tuple(tensor.bytes / 1e9 for tensor in job.tensors)
    return changed(job, stages=(Stage("all-reduce", seconds),))  # type: ignore[arg-type]


@breaks("test_it_is_plain_data")
def has_numpys_integers(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Rank by what numpy has sorted."""
    return changed(job, stages=(Stage("all-reduce", tuple(np.array(need(job), np.int64))),))


@breaks("test_it_is_plain_data")
def has_lists(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Keep something that can still be changed."""
    return changed(job, stages=(Stage("all-reduce", list(need(job))),))  # type: ignore[arg-type]


@breaks("test_it_is_plain_data")
def has_another_name(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Go by the name of another."""
    return changed(job, name="fifo")


class Forgetful(Policy, frozen=True):
    """Cuts by a method of its own, which never reaches a rank, and forgets the first piece."""

    def cut(self, job: Job) -> Pieces:
        operation, *others = super().cut(job)
        return Pieces(operation[:-1], *(column[1:] for column in others))


@breaks("test_it_is_plain_data")
def is_not_only_data(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Cut in a method."""
    return Forgetful("mutant", one_stage(job), barrier=False)


@breaks("test_it_is_made_for_every_job_and_cluster")
def has_too_few_priorities(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Rank layers, not tensors."""
    return changed(job, stages=(Stage("all-reduce", tuple(range(len(job.layers)))),))


@breaks("test_it_fits_the_job")
def has_too_large_priorities(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Leave room between the ranks."""
    return changed(job, stages=(Stage("all-reduce", tuple(n * 2**62 for n in need(job))),))


@breaks("test_it_fits_the_job")
def has_gaps_in_its_groups(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Group by the layer's number."""
    return changed(job, cutting=Groups(need(job)))


@breaks("test_it_is_made_for_every_job_and_cluster")
def has_groups_for_layers(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Group layers, not tensors."""
    return changed(job, cutting=Groups(tuple(range(len(job.layers) + len(job.tensors)))))


@breaks("test_it_fits_the_job")
def has_no_stage(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send nothing."""
    return changed(job, stages=())


@breaks("test_it_fits_the_job")
def comes_after_nothing(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Begin after a stage that is not there."""
    return changed(job, stages=(Stage("all-reduce", need(job), after_all=True),))


@breaks("test_it_fits_the_job")
def has_an_ideal_link_and_a_barrier(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Wait at a barrier that an ideal link does not know."""
    return changed(job, preemptive=True, barrier=True)


@breaks("test_its_stages_are_a_whole_synchronisation")
def only_scatters(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Reduce-scatter, and forget to gather."""
    return changed(job, stages=(Stage("reduce-scatter", need(job)),))


@breaks("test_its_stages_are_a_whole_synchronisation")
def gathers_first(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Gather what is not reduced yet."""
    gather, scatter = Stage("all-gather", need(job)), Stage("reduce-scatter", need(job))
    return changed(job, stages=(gather, scatter))


@breaks("test_its_stages_are_a_whole_synchronisation", sync=("ps",))
def only_pushes(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Push, and never pull."""
    return changed(job, stages=(Stage("push", need(job)),))


@breaks("test_its_stages_are_a_whole_synchronisation", sync=("ps",))
def pulls_first(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Pull what was not pushed."""
    return changed(job, stages=(Stage("pull", need(job)), Stage("push", need(job))))


@breaks("test_its_stages_are_a_whole_synchronisation", sync=("ps",))
def reduces_without_servers(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Reduce among the workers, where there are servers."""
    return changed(job, stages=one_stage(job, 1))


@breaks("test_the_window_is_kept", knobs=[PARTITION.with_default(8), CREDIT.with_default(2)])
def has_twice_the_window(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Take the credit twice."""
    assert knobs.credit_bytes is not None
    stages = one_stage(job, 2 * knobs.credit_bytes)
    return changed(job, stages=stages, cutting=Parts(knobs.partition_bytes))


@breaks("test_nothing_is_larger_than_its_knobs_allow", knobs=[PARTITION.with_default(8)])
def has_twice_the_partition(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Cut every second time."""
    assert knobs.partition_bytes is not None
    return changed(job, cutting=Parts(2 * knobs.partition_bytes))


@breaks("test_nothing_is_larger_than_its_knobs_allow", knobs=[FUSION.with_default(8)])
def has_twice_the_fusion(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Overfill the buffer."""
    assert knobs.fusion_bytes is not None
    stages = one_stage(job, 1)
    return changed(job, stages=stages, fusion_bytes=2 * knobs.fusion_bytes)


@breaks("test_a_declared_knob_has_an_effect", knobs=[FUSION.with_default(1)])
def ignores_a_knob(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Have a knob for show."""
    return changed(job)


@breaks("test_a_declared_knob_has_an_effect", knobs=[PARTITION.with_default(8)])
def ignores_a_knob_in_one_way(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Cut for servers only, and say nothing where it does not."""
    if cluster.sync == "allreduce":
        return changed(job, cutting=Parts(1))
    stages = (Stage("push", need(job)), Stage("pull", need(job)))
    return changed(job, stages=stages, cutting=Parts(knobs.partition_bytes))


REGISTERED[ignores_a_knob_in_one_way] |= {"sync": ("allreduce", "ps")}


@breaks("test_an_undeclared_knob_has_none")
def reads_a_hidden_knob(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Have a knob that nobody can turn."""
    return changed(job, cutting=Parts(knobs.partition_bytes))


@breaks("test_the_same_question_has_the_same_answer")
def throws_dice(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Rank at random."""
    priority = tuple(random.randrange(2**40) for _ in job.tensors)
    return changed(job, stages=(Stage("all-reduce", priority),))


asked: list[Job] = []


@breaks("test_the_same_question_has_the_same_answer")
def remembers(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Keep a barrier after a question about a larger job."""
    asked.append(job)
    return changed(job, barrier=len(asked[-2:][0].tensors) > len(job.tensors))


def right_in_halves(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Gather each part as soon as it is reduced, by the link on which scattering goes on."""
    stages = (Stage("reduce-scatter", need(job)), Stage("all-gather", need(job)))
    return changed(job, stages=stages, cutting=Parts(1))


REGISTERED[right_in_halves] = {}
