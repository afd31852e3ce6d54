"""Policies that other processes import when a sweep brings them along."""

import multiprocessing
import os
import time

from bytelane.cluster import Cluster
from bytelane.core import Knobs, Policy, Stage
from bytelane.errors import InputError
from bytelane.job import Job


def backwards(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Send what is needed last first."""
    priority = tuple(-tensor.needed_by for tensor in job.tensors)
    return Policy("backwards", (Stage("all-reduce", priority),), barrier=False)


def slow_link_only(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    if cluster.link.rate > 1e8:
        raise InputError("this one cannot be made")
    return backwards(job, cluster, knobs)


def deadly(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """End every process but the first."""
    if multiprocessing.parent_process() is not None:
        os._exit(1)
    return backwards(job, cluster, knobs)


def sleepy(job: Job, cluster: Cluster, knobs: Knobs) -> Policy:
    """Take longer than anybody waits, but not on slow links."""
    if cluster.link.rate > 2e8:
        time.sleep(600)
    return backwards(job, cluster, knobs)
