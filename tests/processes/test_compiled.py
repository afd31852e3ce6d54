"""The compiled simulator is the interpreted one, faster."""

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import delay_network
from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.core import kernel as core_kernel
from bytelane.core.table import policy_state
from bytelane.job import Job, zoo
from bytelane.sim import Jitter, assembly, compiled, evaluate, evaluate_each, log, simulate
from bytelane.sim import kernel as sim_kernel
from bytelane.sim.cache import NotPrivate, cache_folder, require_private
from bytelane.sim.layout import lay_out, make_log, make_now, step_durations_s
from bytelane.sim.network import serial
from exact_links import three_layers
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
    cluster = Cluster.star(3, link, servers=3 if sync == "ps" else 0)
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
    cluster = Cluster.star(3, link, servers=3 if sync == "ps" else 0)
    knobs = [Knobs(part, credit, part) for credit in in_flight]
    policies = [make_policy(name, job, cluster, one) for one in knobs]
    alone = [simulate(job, cluster, policy, "interpreted").iteration_s for policy in policies]
    assert evaluate_each(job, cluster, policies, "compiled") == alone


def test_the_loop_is_compiled_once_for_all_policies() -> None:
    """Arrays that lie differently in memory would each cost another ten seconds."""
    job = zoo.make("resnet50")
    for sync, name in ways:
        for jitter in (None, Jitter(0.1)):
            cluster = Cluster.star(2, Link(1e9), servers=2 if sync == "ps" else 0)
            policy = make_policy(name, job, cluster)
            simulate(job, cluster, policy, "compiled", jitter)
            evaluate(job, cluster, policy, "compiled")
    assert len(compiled.load_compiled().run.signatures) == 1


RUN = """
from bytelane import Cluster, Job, Layer, Link, Tensor
from bytelane.core import Knobs, make_policy, policies_for
from bytelane.core import kernel as core_kernel
from bytelane.core.table import policy_state
from bytelane.sim import simulate
from bytelane.sim.compiled import load_compiled
job = Job("x", (Layer("a", 1.0, 1.0),), (Tensor("a", 8, (0,)),))
cluster = Cluster.star(2, Link(8.0))
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


def test_the_cache_folder_is_named_by_the_text_of_all_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, first = compiled._source()
    assert compiled._source()[1] == first
    assert compiled._source(delay_network)[1] != first
    for changed in (sim_kernel, serial, log, core_kernel):
        with monkeypatch.context() as patch:
            patch.setattr(assembly.inspect, "getsource", lambda module, c=changed: str(module is c))
            assert compiled._source()[1] != first


# Another network in the same text


def on_delay_network(
    job: Job, name: str, delay_ticks: int, run: assembly.Run
) -> tuple[log.Log, int]:
    cluster = Cluster.star(2, Link(8.0))
    policy = make_policy(name, job, cluster)
    state, step_s = policy_state(policy, job), step_durations_s(job, cluster, 1, None)
    work = lay_out(job, cluster, policy, state, step_s).work
    work = work._replace(step_ticks=np.rint(8 * step_s).astype(np.int64))
    found = make_log(state, work, iterations=4, kept=3)
    network = delay_network.Network(delay_ticks)
    flights = delay_network.Flights(
        np.full(state.size.size, log.NEVER), np.zeros(1, dtype=np.int64)
    )
    run(state, work, make_now(job, state, work), network, flights, found)
    return found, int(flights.looked_at[0])


@settings(max_examples=30)
@given(
    jobs(max_layers=9, max_tensors=9),
    st.sampled_from(["fifo", "p3", "fusion", "dear"]),
    st.integers(0, 99),
)
def test_another_network_runs_in_the_same_loop_interpreted_and_compiled(
    job: Job, name: str, delay: int
) -> None:
    slow, looks = on_delay_network(job, name, delay, assembly.interpreted(delay_network))
    fast, same = on_delay_network(job, name, delay, compiled.load_compiled(delay_network).run)
    assert looks == same
    for mine, other in zip(fast, slow, strict=True):
        assert np.array_equal(mine, other)
    sent = slow.launched >= 0
    assert np.all(slow.known[sent] - slow.launched[sent] == delay)


@pytest.mark.parametrize("delay_s", [0, 1, 5])
def test_on_a_network_without_rates_only_the_delay_of_the_last_gradient_counts(
    delay_s: int,
) -> None:
    for loop in (assembly.interpreted(delay_network), compiled.load_compiled(delay_network).run):
        found, _ = on_delay_network(three_layers(), "fifo", 8 * delay_s, loop)
        assert np.diff(found.iteration_start[0])[1:].tolist() == [8 * (6 + delay_s)] * 3


def test_a_network_has_all_names_of_the_seam_and_none_of_the_loops() -> None:
    half = ModuleType("half")
    half.transmit = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="network half has no Network and no Flights"):
        assembly.joined_text(half)
    clash = ModuleType("clash")
    for name in (*assembly.NAMES, "_launch"):
        setattr(clash, name, type(name, (), {"__module__": "clash"}))
    with pytest.raises(TypeError, match=r"clash and bytelane\.sim\.kernel both define _launch"):
        assembly.joined_text(clash)


# Nobody else's code is loaded


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the compiled kernels are kept, below the home of this test."""
    monkeypatch.delenv("BYTELANE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = cache_folder() / "0123456789abcdef"
    require_private(folder)
    return folder


def test_what_is_missing_is_made_for_this_user_alone(folder: Path) -> None:
    mask = os.umask(0)
    try:
        require_private(folder / "below" / "it")
    finally:
        os.umask(mask)
    for made in (folder, folder.parent, folder.parent.parent, folder / "below" / "it"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    require_private(folder)


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o720, 0o770, 0o777])
def test_a_folder_that_others_can_enter_is_not_used(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(NotPrivate, match=r"this user's alone|written by other users"):
        require_private(folder)


@pytest.mark.parametrize("above", [1, 2, 3])
def test_a_folder_that_others_can_replace_is_not_used(folder: Path, above: int) -> None:
    replaceable = folder.parents[above - 1]
    replaceable.chmod(0o757)
    with pytest.raises(NotPrivate, match="can be written by other users"):
        require_private(folder)
    replaceable.chmod(0o1777)  # as /tmp is
    require_private(folder)


def test_a_link_in_place_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPrivate, match="is not a folder"):
        require_private(folder)


def test_a_link_on_the_way_is_followed_to_where_it_leads(folder: Path, tmp_path: Path) -> None:
    folder.rmdir()
    elsewhere = tmp_path / "scratch" / "cache"
    elsewhere.mkdir(parents=True)
    folder.parent.rmdir()
    folder.parent.symlink_to(elsewhere)
    require_private(folder)
    assert stat.S_IMODE((elsewhere / folder.name).stat().st_mode) == 0o700
    (tmp_path / "scratch").chmod(0o777)
    with pytest.raises(NotPrivate, match="scratch can be written by other users"):
        require_private(folder)


def test_links_in_a_circle_end(folder: Path) -> None:
    folder.rmdir()
    folder.parent.rmdir()
    folder.parent.symlink_to(folder.parent.name)
    with pytest.raises(NotPrivate, match="links"):
        require_private(folder)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@needs_root
@pytest.mark.parametrize("which", ["folder", "file", "parent", "home"])
def test_what_belongs_to_another_user_is_not_used(folder: Path, tmp_path: Path, which: str) -> None:
    (folder / "__pycache__").mkdir()
    file = folder / "__pycache__" / "run.nbi"
    file.write_bytes(b"pickled")
    require_private(folder)
    places = {"folder": folder, "file": file, "parent": folder.parent, "home": tmp_path}
    os.chown(places[which], 65534, 65534)
    with pytest.raises(NotPrivate):
        require_private(folder)


def test_a_link_among_the_files_is_not_used(folder: Path, tmp_path: Path) -> None:
    (folder / "bytelane_kernels.py").symlink_to(tmp_path / "theirs.py")
    with pytest.raises(NotPrivate, match="neither a file nor a folder"):
        require_private(folder)


LOAD = """
from bytelane.sim.compiled import load_compiled
print(type(load_compiled().run._cache).__name__)
"""


def test_what_a_stranger_has_put_below_tmp_is_not_run(tmp_path: Path) -> None:
    """The home cannot be written, and all predictable places have been prepared."""
    home, temp = tmp_path / "home", tmp_path / "tmp"
    home.write_text("not a folder")
    temp.mkdir()
    names = {compiled._source()[1], hashlib.sha256(b"").hexdigest()[:16]}
    names |= {path.name for path in cache_folder().glob("*")}
    for name in names:
        planted = temp / f"bytelane-{os.getuid()}" / name
        planted.mkdir(parents=True)
        (planted / "bytelane_kernels.py").write_text("print('a stranger was here')")
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={"HOME": str(home), "TMPDIR": str(temp), "NUMBA_CACHE_DIR": str(temp / "numba")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "NullCache\n"
    assert done.stderr.count("\n") == 1
    assert "for this process alone" in done.stderr
    assert "set BYTELANE_CACHE" in done.stderr
    assert sorted(path.name for path in temp.iterdir()) == [f"bytelane-{os.getuid()}"]


def test_numbas_own_setting_does_not_move_the_cache_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba import config

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BYTELANE_CACHE", str(tmp_path / "ours"))
    module = compiled._load_compiled.__wrapped__(serial)
    digest = compiled._source()[1]
    assert module.run._cache.cache_path == str(tmp_path / "ours" / digest / "__pycache__")
    assert str(tmp_path) == config.CACHE_DIR


# A function of one line stands for the loop, which would take ten seconds to compile.
NO_ROOM = """
import resource, sys
from types import SimpleNamespace
from numba import njit
sys.path.insert(0, sys.argv[1])
from tiny import add
from bytelane.sim import compiled
loop = SimpleNamespace(run=njit(cache=True)(add))
compiled.load_compiled = lambda network: loop
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    njit(cache=True)(add)(1, 2)
except OSError as error:
    print(error.strerror)
print(compiled.run_compiled(1, 2), compiled.run_compiled(3, 4))
"""


def test_a_disk_without_room_costs_the_cache_and_not_the_answer(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text("def add(a, b):\n    return a + b\n")
    environment = dict(os.environ)
    environment.pop("COVERAGE_PROCESS_CONFIG", None)  # there is no room for that, either
    done = subprocess.run(
        [sys.executable, "-B", "-c", NO_ROOM, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("File too large\n3 7\n", "")
