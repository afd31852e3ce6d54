"""The compiled simulator is the interpreted one, faster."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.job import Job, zoo
from bytelane.sim import Jitter, compiled, evaluate, evaluate_each, simulate
from strategies import jobs

ways = [
    (sync, name) for sync in ("allreduce", "ps") for name in policies_for(sync) if name != "optimal"
]
uneven = st.floats(0, 1e-2, allow_subnormal=False)


knob_values = st.builds(Knobs, st.integers(1, 40), st.integers(1, 80), st.integers(1, 80))
links = st.builds(Link, st.floats(1e-3, 1e6), uneven, uneven, uneven)


def assert_the_same(
    job: Job, knobs: Knobs, link: Link, way: tuple[str, str], jitter: Jitter | None
) -> None:
    sync, name = way
    cluster = Cluster(3, link, servers=3 if sync == "ps" else 0)
    policy = make_policy(name, job, cluster, knobs)
    fast = simulate(job, cluster, policy, "compiled", jitter)
    slow = simulate(job, cluster, policy, "interpreted", jitter)
    assert fast.iteration_s == slow.iteration_s
    assert fast.log is not None
    assert slow.log is not None
    for mine, other in zip(fast.log, slow.log, strict=True):
        assert np.array_equal(mine, other, equal_nan=True)


@given(jobs(max_layers=20, max_tensors=30), knob_values, links, st.sampled_from(ways))
def test_compiled_equals_interpreted_bit_for_bit(
    job: Job, knobs: Knobs, link: Link, way: tuple[str, str]
) -> None:
    assert_the_same(job, knobs, link, way, jitter=None)


@settings(max_examples=20)
@given(jobs(max_layers=5, max_tensors=5), knob_values, links, st.sampled_from(ways))
def test_compiled_equals_interpreted_with_workers_that_differ(
    job: Job, knobs: Knobs, link: Link, way: tuple[str, str]
) -> None:
    assert_the_same(job, knobs, link, way, Jitter(0.1, seed=3))


@settings(max_examples=30)
@given(
    jobs(max_layers=9, max_tensors=9),
    st.integers(1, 40),
    st.lists(st.integers(1, 80), max_size=4),
    links,
    st.sampled_from(ways),
)
def test_one_layout_for_many_windows_serves_the_compiled_loop_as_well(
    job: Job, part: int, in_flight: list[int], link: Link, way: tuple[str, str]
) -> None:
    sync, name = way
    cluster = Cluster(3, link, servers=3 if sync == "ps" else 0)
    knobs = [Knobs(part, credit, part) for credit in in_flight]
    policies = [make_policy(name, job, cluster, one) for one in knobs]
    alone = [simulate(job, cluster, policy, "interpreted").iteration_s for policy in policies]
    assert evaluate_each(job, cluster, policies, "compiled") == alone


def test_the_loop_is_compiled_once_for_all_policies() -> None:
    """Arrays that lie differently in memory would each cost another ten seconds."""
    job = zoo.make("resnet50")
    for sync, name in ways:
        for jitter in (None, Jitter(0.1)):
            cluster = Cluster(2, Link(1e9), servers=2 if sync == "ps" else 0)
            policy = make_policy(name, job, cluster)
            simulate(job, cluster, policy, "compiled", jitter)
            evaluate(job, cluster, policy, "compiled")
    assert len(compiled.load_compiled().run.signatures) == 1


RUN = """
from bytelane import Cluster, Job, Layer, Link, Tensor
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.sim import simulate
from bytelane.sim.compiled import load_compiled
job = Job("x", (Layer("a", 1.0, 1.0),), (Tensor("a", 8, (0,)),))
cluster = Cluster(2, Link(8.0))
simulate(job, cluster, make_policy("bytescheduler", job, cluster, Knobs(4, 4)), "compiled")
print(len(load_compiled().run.stats.cache_hits), len(load_compiled().run.stats.cache_misses))
"""


def run_in_new_process(cache: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={"BYTELANE_CACHE": str(cache), "HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_a_second_process_does_not_compile_again(tmp_path: Path) -> None:
    hits_and_misses, said = run_in_new_process(tmp_path)
    assert hits_and_misses == "0 1"
    assert "compiling the simulator" in said
    hits_and_misses, said = run_in_new_process(tmp_path)
    assert hits_and_misses == "1 0"
    assert said == ""


def test_the_cache_folder_is_named_by_the_text_of_both_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTELANE_CACHE", str(tmp_path))
    first = compiled._source_file()
    assert compiled._source_file() == first
    text = {compiled.sim_kernel: "a = 1", compiled.core_kernel: "b = 2"}
    monkeypatch.setattr(compiled.inspect, "getsource", text.__getitem__)
    assert compiled._source_file().parent != first.parent


def test_without_a_writable_cache_a_temporary_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BYTELANE_CACHE", raising=False)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path / "temp"))
    assert (tmp_path / "temp") in compiled._source_file().parents
