"""Many what-ifs: every combination once, in order, and each answer that of a single simulation."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, Setting, choose_knobs, make_policy, policies_for
from bytelane.errors import InputError, UnknownPolicy
from bytelane.job import Job, Layer, Tensor
from bytelane.report.sweep import all_axes, common_ground, fastest_answers, records, swept_axes
from bytelane.report.sweep_plot import MOST_LINES, make_layout, sweep_figure
from bytelane.sim import simulate
from bytelane.sim import sweep as sweep_module
from bytelane.sim.evaluation import times_each
from bytelane.sim.sweep import Answer, WhatIf, combinations, count_choices, make_settings, sweep
from strategies import jobs

SMALL = Job(
    "small",
    (Layer("a", 1e-3, 2e-3), Layer("b", 2e-3, 4e-3)),
    (Tensor("a", 8_000_000, (0,)), Tensor("b", 1_000_000, (1,))),
)
# Who uses which knob, written down once more.
USES = {
    "fusion": {"fusion_bytes"},
    "dear": {"fusion_bytes"},
    "p3": {"partition_bytes", "credit_bytes"},
    "bytescheduler": {"partition_bytes", "credit_bytes"},
}
FIFO_AND_PARTS = ["fifo", "bytescheduler"]


def cluster(workers: int = 2, rate: float = 1e9, servers: int = 0, slow: float = 1.0) -> Cluster:
    factors = () if slow == 1.0 else (1.0,) * (workers - 1) + (slow,)
    return Cluster.star(workers, Link(rate, 1e-5, 2e-5), servers, True, factors)


def ring(*rates: float) -> list[Cluster]:
    return [cluster(rate=rate) for rate in rates]


sizes = st.lists(st.integers(1, 100), max_size=3, unique=True)
knob_lists = st.fixed_dictionaries(
    {"partition_bytes": sizes, "credit_bytes": sizes, "fusion_bytes": sizes}
)
places = st.lists(
    st.builds(
        lambda workers, rate, ps, slow: cluster(workers, rate, workers if ps else 0, slow),
        st.integers(1, 4),
        st.sampled_from([8.0, 64.0, 1e3]),
        st.booleans(),
        st.sampled_from([1.0, 1.5]),
    ),
    min_size=1,
    max_size=4,
    unique=True,
)
names = st.lists(
    st.sampled_from(["sequential", "mg-wfbp", "tic", "tac", "fsdp", "optimal", *USES]),
    min_size=1,
    max_size=4,
    unique=True,
)


def useful(
    clusters: list[Cluster], policies: list[str], knobs: dict[str, list[int]]
) -> tuple[list[str], dict[str, list[int]]]:
    """Make of anything something that is not refused: fifo goes everywhere."""
    syncs = {one.sync for one in clusters}
    able = [name for name in policies if any(name in policies_for(sync) for sync in syncs)]
    able = [*able, *(["fifo"] if "fifo" not in able else [])]
    used = {knob for name in able for knob in USES.get(name, set())}
    return able, {knob: values for knob, values in knobs.items() if knob in used}


# The product


@given(places, names, knob_lists, st.integers(1, 2))
def test_there_are_as_many_settings_as_the_lists_say_and_none_twice(
    clusters: list[Cluster], policies: list[str], knobs: dict[str, list[int]], count: int
) -> None:
    policies, knobs = useful(clusters, policies, knobs)
    trained = [Job(f"job {i}", SMALL.layers, SMALL.tensors) for i in range(count)]
    found = make_settings(trained, clusters, policies, knobs)
    expected = 0
    for one in clusters:
        for name in set(policies) & set(policies_for(one.sync)):
            ways = 1
            for knob in USES.get(name, set()):
                ways *= len(knobs.get(knob, [])) or 1
            expected += ways
    assert len(found) == count * expected
    assert len(set(found)) == len(found)
    assert len(found) == count * sum(count_choices(policies, c.sync, knobs) for c in clusters)


@given(places, names, knob_lists)
def test_settings_come_in_the_order_of_the_lists(
    clusters: list[Cluster], policies: list[str], knobs: dict[str, list[int]]
) -> None:
    policies, knobs = useful(clusters, policies, knobs)

    def place(setting: WhatIf) -> tuple[int, ...]:
        chosen = [
            values.index(getattr(setting.knobs, knob))
            for knob, values in knobs.items()
            if values and knob in USES.get(setting.policy, set())
        ]
        return (clusters.index(setting.cluster), policies.index(setting.policy), *chosen)

    order = [place(setting) for setting in make_settings([SMALL], clusters, policies, knobs)]
    assert order == sorted(order)


def test_a_policy_is_combined_with_its_own_knobs_only() -> None:
    lists = {"partition_bytes": [1000, 2000], "credit_bytes": [5000]}
    found = make_settings([SMALL], ring(1e9), FIFO_AND_PARTS, lists)
    assert [(setting.policy, setting.knobs) for setting in found] == [
        ("fifo", Knobs()),
        ("bytescheduler", Knobs(1000, 5000)),
        ("bytescheduler", Knobs(2000, 5000)),
    ]


def test_what_is_left_open_is_the_policys_own_choice() -> None:
    found = make_settings([SMALL], ring(1e9), ["p3", "fusion"], {"partition_bytes": [1000]})
    assert [s.knobs for s in found] == [Knobs(1000, 1000), choose_knobs("fusion")]


def test_a_policy_goes_where_it_has_a_meaning() -> None:
    places = [cluster(4), cluster(4, servers=4)]
    found = make_settings([SMALL], places, ["tic", "dear", "fifo"])
    assert [(s.cluster.sync, s.policy) for s in found] == [
        ("allreduce", "dear"),
        ("allreduce", "fifo"),
        ("ps", "tic"),
        ("ps", "fifo"),
    ]


@pytest.mark.parametrize(
    ("clusters", "policies", "knobs", "complaint"),
    [
        ([cluster()], ["fifo", "fsdp"], {"partition_bytes": [1]}, "partition has no effect under"),
        ([cluster()], ["p3"], {"fusion_bytes": [1]}, "fusion has no effect under p3"),
        ([cluster()], ["fifo", "tac"], {}, "tac has no meaning for allreduce"),
        ([cluster(), cluster(servers=2)], ["tac"], {}, "allreduce has none of these policies: tac"),
        ([cluster()], ["p3"], {"partition_bytes": [0]}, "partition_bytes is 0"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    clusters: list[Cluster], policies: list[str], knobs: dict[str, list[int]], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        make_settings([SMALL], clusters, policies, knobs)


def test_a_setting_without_meaning_cannot_be_made() -> None:
    with pytest.raises(InputError, match="tic has no meaning for allreduce"):
        WhatIf(SMALL, cluster(), Setting("tic"))
    with pytest.raises(UnknownPolicy, match="did you mean fifo"):
        WhatIf(SMALL, cluster(), Setting("fifos"))


@given(st.dictionaries(st.text(max_size=2), st.lists(st.integers(), max_size=3), max_size=4))
def test_combinations_are_the_product(lists: dict[str, list[int]]) -> None:
    found = [tuple(chosen[name] for name in lists) for chosen in combinations(lists)]
    assert found == list(itertools.product(*lists.values()))


# The answers


def assert_as_if_asked_alone(answer: Answer) -> None:
    one = answer.asked
    policy = make_policy(one.policy, one.job, one.cluster, one.knobs)
    alone = simulate(one.job, one.cluster, policy, "interpreted")
    assert answer.iteration_s == alone.iteration_s
    assert answer.compute_s == alone.compute_s
    assert answer.communication_s == alone.communication_s
    assert answer.bound_s == alone.bound_s
    assert answer.optimal_s == alone.optimal_s


@settings(max_examples=40)
@given(st.lists(jobs(max_layers=4), min_size=1, max_size=2), places, names, knob_lists)
def test_every_answer_is_that_of_a_single_simulation(
    trained: list[Job], clusters: list[Cluster], policies: list[str], knobs: dict[str, list[int]]
) -> None:
    policies, knobs = useful(clusters, policies, knobs)
    asked = make_settings(trained, clusters, policies, knobs)
    answers = list(sweep(asked))
    assert [answer.asked for answer in answers] == asked
    for answer in answers:
        assert_as_if_asked_alone(answer)


def test_one_worker_has_nothing_to_communicate() -> None:
    for answer in sweep(make_settings([SMALL], [cluster(workers=1)], policies_for("allreduce"))):
        assert answer.communication_s == 0
        assert answer.iteration_s == pytest.approx(answer.compute_s)


@given(st.integers(0, 5000))
def test_chunks_are_the_whole_in_order(count: int) -> None:
    tasks = list(range(count))
    chunks = sweep_module._chunks(tasks)  # type: ignore[arg-type]
    assert list(itertools.chain.from_iterable(chunks)) == tasks
    assert all(chunks)


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_an_executor_gives_the_same_answers_in_the_same_order(count: int) -> None:
    asked = make_settings([SMALL], ring(*(1e8 * (i + 1) for i in range(count))), ["fifo"])
    with ThreadPoolExecutor(3) as threads:
        assert list(sweep(asked, threads)) == list(sweep(asked))


def test_nothing_asked_is_nothing_answered() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert list(sweep([])) == list(sweep([], threads)) == []


def test_answers_come_as_they_are_asked_for() -> None:
    answers = sweep(make_settings([SMALL], ring(1e9, 2e9), FIFO_AND_PARTS))
    assert next(answers).asked.policy == "fifo"


@pytest.mark.parametrize("worth", [0, 10**12])
def test_compiled_or_not_the_answers_are_the_same(
    worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = []

    def watched(job: Job, where: Cluster, policies: object, engine: str) -> object:
        engines.append(engine)
        return times_each(job, where, policies, engine)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep_module, "WORTH_COMPILING", worth)
    monkeypatch.setattr(sweep_module, "times_each", watched)
    for answer in sweep(make_settings([SMALL], ring(1e8, 1e9), FIFO_AND_PARTS)):
        assert_as_if_asked_alone(answer)
    assert set(engines) == {"compiled" if worth == 0 else "auto"}


def test_small_steps_add_up_to_something_worth_compiling() -> None:
    asked = make_settings([SMALL], ring(1e9), ["bytescheduler"], {"partition_bytes": [10_000]})
    assert not sweep_module._worth_compiling(asked * 9)  # 900 parts each, in one iteration of four
    assert sweep_module._worth_compiling(asked * 36)
    slow = make_settings([SMALL], [cluster(workers=10, slow=2.0)], ["p3"])
    assert sweep_module._about_steps(slow[0]) == 10 * 4 * (3 * 2 + 9_000_000 // 160_000)


# The report


def names_of(asked: list[WhatIf]) -> list[str]:
    return [axis.name for axis in swept_axes(asked)]


def test_what_was_varied_is_told_from_what_follows_from_it() -> None:
    lists = {"partition_bytes": [1000, 2000]}
    asked = make_settings([SMALL], ring(1e9, 2e9), FIFO_AND_PARTS, lists)
    assert names_of(asked) == ["bandwidth", "policy", "partition"]  # credit is two partitions
    shared = [cluster(workers, servers=workers) for workers in (2, 4)]
    assert names_of(make_settings([SMALL], shared, ["fifo"])) == ["workers"]
    assert names_of(asked[:1]) == []


def test_what_does_not_differ_is_said_once() -> None:
    lists = {"partition_bytes": [500_000], "credit_bytes": [1_000_000]}
    asked = make_settings([SMALL], ring(1e9, 2e9), ["p3"], lists)
    assert common_ground(asked) == (
        "small, allreduce, workers 2, overhead 10 us, latency 20 us, p3, partition 500 kB, "
        "credit 1 MB"
    )


def test_a_record_has_all_that_was_asked_and_found() -> None:
    where = cluster(workers=4, servers=4, slow=1.5)
    (answer,) = sweep([WhatIf(SMALL, where, Setting("p3", Knobs(1000, 2000)))])
    (found,) = records([answer])
    assert found == {
        "job": "small",
        "sync": "ps",
        "workers": 4,
        "servers": 4,
        "slow_factor": 1.5,
        "bandwidth_bit_per_s": 8e9,
        "overhead_ms": pytest.approx(0.01),
        "latency_ms": pytest.approx(0.02),
        "floor_ms": 0,
        "policy": "p3",
        "partition_bytes": 1000,
        "credit_bytes": 2000,
        "fusion_bytes": None,
        "colocated": True,
        "shared_link": False,
        "iteration_ms": answer.iteration_s * 1000,
        "compute_ms": answer.compute_s * 1000,
        "communication_ms": answer.communication_s * 1000,
        "bound_ms": answer.bound_s * 1000,
        "optimal_ms": answer.optimal_s * 1000,
    }


def answered(asked: list[WhatIf], *seconds: float) -> list[Answer]:
    return [Answer(one, s, 1.0, 1.0, 0.5) for one, s in zip(asked, seconds, strict=True)]


def test_the_fastest_of_each_place_is_found() -> None:
    asked = make_settings([SMALL], ring(1e9, 2e9), ["fifo", "p3", "optimal"])
    found = fastest_answers(answered(asked, 3.0, 2.0, 1.0, 4.0, 5.0, 1.0))
    assert [(a.asked.policy, a.iteration_s) for a in found] == [("p3", 2.0), ("fifo", 4.0)]


def test_of_those_that_differ_by_rounding_only_the_first_is_the_fastest() -> None:
    asked = make_settings([SMALL], ring(1e9), ["fifo", "p3"])
    (best,) = fastest_answers(answered(asked, 2.0 * (1 + 1e-14), 2.0))
    assert best.asked.policy == "fifo"
    (best,) = fastest_answers(answered(asked, 2.0 * (1 + 1e-6), 2.0))
    assert best.asked.policy == "p3"


def test_alone_the_optimum_is_the_fastest() -> None:
    (best,) = fastest_answers(sweep(make_settings([SMALL], ring(1e9), ["optimal"])))
    assert best.asked.policy == "optimal"


# The picture


def test_x_is_the_number_with_the_most_values() -> None:
    lists = {"partition_bytes": [1000, 2000, 3000]}
    jobs_ = [SMALL, Job("other", SMALL.layers, SMALL.tensors)]
    layout = make_layout(make_settings(jobs_, ring(1e9, 2e9), FIFO_AND_PARTS, lists))
    assert layout.x.name == "partition"
    assert [axis.name for axis in layout.panels] == ["job", "bandwidth"]
    assert layout.lines == []


def test_a_picture_shows_every_answer_with_its_unit() -> None:
    asked = make_settings([SMALL], ring(125e6, 250e6, 1250e6), ["fifo", "p3", "optimal"])
    answers = list(sweep(asked))
    (axes,) = sweep_figure(answers).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["fifo", "p3", "optimum"]
    for name in ("fifo", "p3"):
        own = [answer for answer in answers if answer.asked.policy == name]
        assert list(lines[name].get_ydata()) == [answer.iteration_s * 1e3 for answer in own]
    assert list(lines["optimum"].get_ydata()) == [a.optimal_s * 1e3 for a in answers[::3]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "1 Gbit/s",
        "2 Gbit/s",
        "10 Gbit/s",
    ]
    assert axes.get_xscale() == "log"
    assert axes.yaxis.get_major_formatter()(50.0).endswith(" ms")


def test_a_policy_without_the_knob_on_the_x_axis_is_a_level_line() -> None:
    lists = {"partition_bytes": [1000, 2000, 3000]}
    answers = list(sweep(make_settings([SMALL], ring(1e9), FIFO_AND_PARTS, lists)))
    (axes,) = sweep_figure(answers).axes
    fifo = next(line for line in axes.get_lines() if line.get_label() == "fifo")
    assert list(fifo.get_xdata()) == [1000, 2000, 3000]
    assert set(fifo.get_ydata()) == {answers[0].iteration_s * 1e3}
    assert axes.get_xscale() == "linear"


def test_with_too_many_lines_each_policy_has_its_best_knobs() -> None:
    parts = [100_000 * (i + 1) for i in range(MOST_LINES)]
    places = ring(*(1e8 * (i + 1) for i in range(MOST_LINES + 1)))
    answers = list(
        sweep(make_settings([SMALL], places, FIFO_AND_PARTS, {"partition_bytes": parts}))
    )
    figure = sweep_figure(answers)
    assert "each policy with the best of its knobs" in figure.get_suptitle()
    drawn = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert list(drawn) == ["fifo", "bytescheduler", "optimum"]
    assert drawn["bytescheduler"][0] == pytest.approx(
        1e3 * min(a.iteration_s for a in answers[1 : 1 + len(parts)])
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12])
def test_each_job_and_cluster_has_a_panel(count: int) -> None:
    trained = [Job(f"job {i}", SMALL.layers, SMALL.tensors) for i in range(count)]
    figure = sweep_figure(list(sweep(make_settings(trained, ring(1e9, 2e9), ["fifo"]))))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ([f"job {i}" for i in range(count)] if count > 1 else [""])


def test_where_x_means_nothing_in_a_whole_panel_lines_are_level() -> None:
    apart = [Cluster.star(4, Link(1e9), servers, False) for servers in (1, 2, 4)]
    figure = sweep_figure(list(sweep(make_settings([SMALL], [cluster(4), *apart], ["fifo"]))))
    assert [axes.get_title() for axes in figure.axes] == ["allreduce", "ps"]
    assert [len(axes.get_lines()[0].get_xdata()) for axes in figure.axes] == [3, 3]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (make_settings([SMALL], ring(1e9), FIFO_AND_PARTS), "several values of some number"),
        (
            make_settings(
                [SMALL],
                [cluster(w, r) for w in range(1, 14) for r in (1e8 * k for k in range(1, 15))],
                ["fifo"],
            ),
            "over bandwidth would have 13 panels, one for each combination of workers",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(asked: list[WhatIf], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_layout(asked)


def test_every_axis_is_known_by_one_name_and_one_key() -> None:
    axes = all_axes(make_settings([SMALL], ring(1e9), ["units"], {"first_bytes": [1000]}))
    assert len({axis.name for axis in axes}) == len({axis.key for axis in axes}) == len(axes)
    assert axes[-1].key == "first_bytes"
