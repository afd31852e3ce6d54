"""Settings, spaces and trials are data, and any tuner can choose settings while a model trains."""

import msgspec
import pytest

from bytelane.cluster import Cluster, Link
from bytelane.core import Context, Knobs, Observation, Setting, Space, Trial, Wish, choose_knobs
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor
from bytelane.sim import make_planner
from bytelane.tune import TunedPlanner
from bytelane.tune.tuned import MOST_FAILURES

MEBIBYTE = 2**20
JOB = Job(
    "two",
    (Layer("a", 0.1, 0.2), Layer("b", 0.1, 0.2)),
    (Tensor("a", 2 * MEBIBYTE, (0,)), Tensor("b", 2 * MEBIBYTE, (1,))),
)
CLUSTER = Cluster.star(2, Link(1e8))
UNITS = Setting("units", Knobs(512 * 1024, MEBIBYTE, first_bytes=256 * 1024), ratio=1.25)


class Grid:
    """Try all, then stay with the best: the simplest tuner that looks for anything."""

    def __init__(self, *settings: Setting) -> None:
        self.space = Space(tuple(dict.fromkeys(setting.policy for setting in settings)))
        self.begun: list[Context] = []
        self.told: list[Trial] = []
        self._settings = settings

    def begin(self, context: Context) -> None:
        self.begun.append(context)
        self.told = []

    def ask(self) -> Setting:
        tried = [trial.setting for trial in self.told]
        for setting in self._settings:
            if setting not in tried:
                return setting
        went = [trial for trial in self.told if trial.seconds is not None] or self.told
        return min(went, key=lambda trial: trial.seconds or 0.0).setting

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


def seen(iteration_s: float | None) -> Observation:
    return Observation(step=8, plan_version=1, iteration_s=iteration_s)


def test_a_setting_is_one_line_and_plain_data() -> None:
    line = "units, partition 512 KiB, credit 1 MiB, first 256 KiB, ratio 1.25"
    assert str(UNITS) == line
    assert str(Setting("fifo", in_ready_order=True)) == "fifo, in ready order"
    assert str(Setting("mine", Knobs(own=(("cars", 3),)))) == "mine, cars 3"
    assert len({UNITS, msgspec.structs.replace(UNITS), Setting("fifo")}) == 2
    assert msgspec.json.decode(msgspec.json.encode(UNITS), type=Setting) == UNITS
    assert msgspec.json.encode(Setting("fifo")) == b'{"policy":"fifo"}'


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_that_means_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(InputError, match=r"ratio is .*; it must be above 0 and finite"):
        Setting("fifo", ratio=ratio)


def test_a_trial_has_seconds_or_a_failure() -> None:
    assert str(Trial(UNITS, 0.25)) == f"250 ms with {UNITS}"
    assert str(Trial(UNITS, failure="no room")) == f"{UNITS} failed: no room"
    trial = Trial(UNITS, 0.25, context=Context(JOB, CLUSTER))
    assert msgspec.json.decode(msgspec.json.encode(trial), type=Trial) == trial
    for wrong in ({}, {"seconds": 1.0, "failure": "no room"}):
        with pytest.raises(InputError, match="either seconds or a failure"):
            Trial(UNITS, **wrong)  # type: ignore[arg-type]


def test_the_space_of_a_policy_is_the_grid_of_the_literature() -> None:
    space = Space(("bytescheduler",))
    settings = list(space)
    assert len(settings) == len(space) == len(set(settings)) == 88
    assert settings[0] == Setting("bytescheduler", Knobs(64 * 1024, 64 * 1024))
    assert settings[-1] == Setting("bytescheduler", Knobs(64 * MEBIBYTE, 16 * 64 * MEBIBYTE))
    assert settings[1].knobs.credit_bytes == 128 * 1024  # in parts
    assert settings[3] in space
    assert Setting("bytescheduler", Knobs(3, 3)) not in space
    both = Space(("fifo", "p3"), ratios=(1.0, None))
    assert len(list(both)) == len(both) == 2 + 2 * 88
    assert next(iter(both)) == Setting("fifo", choose_knobs("fifo"), 1.0)


def test_what_a_tuner_asks_for_is_planned_and_told() -> None:
    fifo = Setting("fifo")
    tuner = Grid(fifo, UNITS)
    planner = TunedPlanner(tuner)
    assert planner.observe(seen(1.0)) is Wish.NOTHING
    assert planner.summarise(seen(1.0)) == ""
    assert planner.plan(JOB, CLUSTER, 2).policy == "fifo"
    assert planner.observe(seen(None)) is Wish.NOTHING
    assert planner.observe(seen(0.9)) is Wish.PLAN
    plan = planner.plan(JOB, CLUSTER, 3)
    wanted = make_planner("units", UNITS.knobs, ratio=1.25).plan(JOB, CLUSTER, 3)
    assert plan == wanted
    assert planner.observe(seen(0.8)) is Wish.NOTHING
    assert planner.observe(seen(0.81)) is Wish.NOTHING  # and it is told of that, too
    context = Context(JOB, CLUSTER)
    assert tuner.begun == [context]
    assert tuner.told == [
        Trial(fifo, 0.9, context=context),
        Trial(UNITS, 0.8, context=context),
        Trial(UNITS, 0.81, context=context),
    ]
    assert planner.summarise(seen(1.0)) == f"tuned: last setting {UNITS}"


def test_another_network_begins_anew() -> None:
    tuner = Grid(Setting("fifo"))
    planner = TunedPlanner(tuner)
    for rate in (1e8, 1e8, 2e8):
        planner.plan(JOB, Cluster.star(2, Link(rate)))
    assert [one.cluster and one.cluster.link.rate for one in tuner.begun] == [1e8, 2e8]


def test_a_setting_that_cannot_be_planned_is_told_as_a_failure() -> None:
    tuner = Grid(Setting("optimal"), Setting("tic"), UNITS)
    plan = TunedPlanner(tuner).plan(JOB, CLUSTER)
    assert plan.policy == "units"
    assert [trial.setting.policy for trial in tuner.told] == ["optimal", "tic"]
    assert "not yet carried out for real" in tuner.told[0].failure
    assert "has no meaning for allreduce" in tuner.told[1].failure


def test_a_tuner_that_asks_for_nothing_else_fails_with_the_reason() -> None:
    tuner = Grid(Setting("optimal"))
    with pytest.raises(InputError, match="can be simulated, but not yet carried out"):
        TunedPlanner(tuner).plan(JOB, CLUSTER)
    assert len(tuner.told) == MOST_FAILURES
