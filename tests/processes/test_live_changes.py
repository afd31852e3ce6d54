"""Plans that change while training goes on, recordings of it, and weights that are compared."""

import json
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch
from typer.testing import CliRunner

import bytelane
from bytelane.cli.main import app
from bytelane.cluster import Cluster, Link
from bytelane.core import (
    Context,
    Knobs,
    Observation,
    Plan,
    Planner,
    Setting,
    Space,
    Trial,
    Wish,
)
from bytelane.errors import InputError, PeerFailed, WeightsDiffer
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.torch import Settings, agreement, attach, session_of
from bytelane.runtime.torch.planning import MOST_PLANNING, REVIEWED_ITERATIONS, Planning
from bytelane.sim import make_planner
from bytelane.trace.recording import PlanLine, RoundLine, read, replay
from bytelane.tune import TunedPlanner
from ranks import Pool
from training import equal, loss_of, make, train, trained_by_ddp, weights

POLICIES: list[dict[str, Any]] = [
    {"policy": "fifo"},
    {"policy": "mg-wfbp"},
    {"policy": "p3", "partition": "1KiB"},
    {"policy": "bytescheduler", "partition": "1KiB", "credit": "3KiB"},
    {"policy": "bytescheduler", "partition": 1001, "credit": 1},
    {"policy": "units", "partition": "2KiB", "credit": "4KiB"},
    {"policy": "dear", "fusion": "4KiB"},
]


def changing(rank: int, seed: int, steps: int, every: int) -> tuple[bool, int, int]:
    """Ask for another plan ever so often, at moments that only rank 0 knows."""
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, **POLICIES[3])
    choose = random.Random(seed + rank)  # the other ranks ask for something else, in vain
    asked = 0
    for step in range(steps):
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        if step >= 3 and choose.random() < 1 / every:
            bytelane.replan(
                net,
                **choose.choice(POLICIES),
                barrier=choose.choice([None, True]),
                lanes=choose.choice([None, 2, 3]),
            )
            asked += rank == 0
        opt.step()
    version = session_of(net).plan.version
    return (
        equal(weights(net), trained_by_ddp(rank, "chain", "momentum", steps=steps)),
        asked,
        version,
    )


@pytest.mark.parametrize("seed", range(2))
def test_many_changes_of_plan_lose_nothing(two_ranks: Pool, seed: int) -> None:
    (same, asked, version), (also_same, _, other_version) = two_ranks.run(
        changing, seed=seed, steps=60, every=2
    )
    assert same
    assert also_same
    assert version == other_version
    assert asked / 2 < version <= asked + 2


def on_lanes(rank: int, lanes: int, **knobs: Any) -> tuple[bool, set[int], int]:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, lanes=lanes, **knobs)
    train(net, opt, rank)
    used = {operation.lane for operation in session_of(net).plan.operations}
    groups = {id(group) for group in session_of(net).sync.rounds.transport._groups}
    return equal(weights(net), trained_by_ddp(rank, "chain", "momentum")), used, len(groups)


@pytest.mark.parametrize("knobs", [POLICIES[3], POLICIES[-1]], ids=["all-reduce", "in halves"])
def test_operations_take_turns_on_lanes_of_their_own(
    two_ranks: Pool, knobs: dict[str, Any]
) -> None:
    for same, used, groups in two_ranks.run(on_lanes, lanes=3, **knobs):
        assert same
        assert used == {0, 1, 2}
        assert groups == 3


class Own(Planner):
    """A planner of one's own."""

    name = "own"

    def __init__(self, wish: Wish = Wish.NOTHING, takes_s: float = 0.0) -> None:
        self.began_and_ended: list[tuple[float, float]] = []
        self.seen: list[Observation] = []
        self._wish, self._takes_s = wish, takes_s

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        began = time.perf_counter()
        time.sleep(self._takes_s)
        self.began_and_ended.append((began, time.perf_counter()))
        return make_planner("fifo", Knobs()).plan(job, cluster, version)

    def observe(self, seen: Observation) -> Wish:
        self.seen.append(seen)
        return self._wish

    def summarise(self, seen: Observation, replaced_by: str | None = None) -> str:
        return f"own, after {seen.step} steps, replaced by {replaced_by}"


def never_content(rank: int) -> list[tuple[float, float]]:
    """Train under a planner that is slow, and always wants another plan."""
    planner = Own(wish=Wish.MEASURE_AND_PLAN, takes_s=0.5)
    net, opt = make()
    attach(net, [opt], Settings(planner, timeout_s=30))
    train(net, opt, rank, steps=400)
    return planner.began_and_ended


def test_planning_again_never_takes_most_of_the_time(two_ranks: Pool) -> None:
    plans, on_another_rank = two_ranks.run(never_content)
    assert not on_another_rank
    assert len(plans) > 1
    first = plans[0][0]
    for number, (began, _) in enumerate(plans[1:], start=1):
        spent = sum(end - begin for begin, end in plans[:number])
        assert spent <= MOST_PLANNING * (began - first)


def test_what_a_user_has_proposed_is_not_reviewed() -> None:
    watch: Any = SimpleNamespace(
        iteration_s=lambda last=4: 1.0, link_busy_s=lambda: None, last_transfers=lambda: ()
    )
    control = SimpleNamespace(rank=0, size=2)
    carrier: Any = SimpleNamespace(control=control, fit=lambda plan, trained: plan)
    fifo = make_planner("fifo", Knobs())
    planning = Planning("model", Own(wish=Wish.CORRECT), watch, carrier)
    planning._is_measured = True
    planning.review(REVIEWED_ITERATIONS)
    assert planning.wish is Wish.CORRECT
    planning.propose(fifo)
    planning.review(REVIEWED_ITERATIONS)
    assert planning.wish is Wish.PLAN


def told_at_the_end(rank: int) -> tuple[str, ...]:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, policy=Own())
    session = session_of(net)
    said: list[str] = []
    with mock.patch("bytelane.runtime.torch.session.announce", said.append):
        session.say_farewell()
        train(net, opt, rank, steps=4)
        bytelane.replan(net, policy="fifo")
        train(net, opt, rank, steps=2)
        session.say_farewell()
        bytelane.replan(net, policy=make_planner("p3", Knobs(1000, 1000)).plan)
        train(net, opt, rank, steps=2)
        session.say_farewell()
    return tuple(said)


def test_what_is_told_at_the_end_knows_of_a_users_plan(two_ranks: Pool) -> None:
    assert two_ranks.run(told_at_the_end) == [
        (
            "own, after 0 steps, replaced by None",
            "own, after 6 steps, replaced by fifo",
            "own, after 8 steps, replaced by plan",
        ),
        (),
    ]


def observed_by(rank: int) -> list[Observation]:
    net, opt = make()
    planner = Own()
    bytelane.prepare(net, opt, timeout_s=30, policy=planner)
    train(net, opt, rank, steps=14)
    return planner.seen


def test_a_planner_of_ones_own_sees_how_it_goes(two_ranks: Pool) -> None:
    seen, on_another_rank = two_ranks.run(observed_by)
    assert not on_another_rank
    assert [one.step for one in seen] == [8, 13]
    for one in seen:
        assert one.plan_version == 2
        assert one.iteration_s is not None
        assert one.iteration_s > 0
        assert sum(transfer.bytes for transfer in one.transfers) == sum(
            4 * parameter.numel() for parameter in make()[0].parameters()
        )
        assert all(transfer.launched_s < transfer.finished_s for transfer in one.transfers)


def handed_to_auto(rank: int, policy: str) -> tuple[list[str], bool, bool]:
    """Train under this policy, then by fifo, then hand control (back) to auto."""
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, policy=policy)
    session = session_of(net)
    given = session.find_planner("auto")
    names = []
    for step in range(12):
        if step in (5, 8):
            bytelane.replan(net, policy="fifo" if step == 5 else "auto")
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        opt.step()
        names.append(session.plan.policy)
    same = equal(weights(net), trained_by_ddp(rank, "chain", "momentum", steps=12))
    return names, session.find_planner("auto") is given, same


@pytest.mark.parametrize("policy", ["auto", "p3"])
def test_control_is_handed_back_to_auto(two_ranks: Pool, policy: str) -> None:
    (names, is_given, same), (other_names, _, also_same) = two_ranks.run(
        handed_to_auto, policy=policy
    )
    assert same
    assert also_same
    assert names == other_names
    assert names[:3] == ["buckets"] * 3
    assert names[6:9] == ["fifo"] * 3
    assert set(names[9:]) <= {"units", "buckets"}
    assert is_given == (policy == "auto")


class OnlyPlans(Planner):
    """The least that a planner of one's own has to say."""

    def plan(self, job: Job, cluster: Cluster | None = None, version: int = 1) -> Plan:
        assert cluster is None  # it has not asked for that
        return make_planner("p3", Knobs(1000, 1000)).plan(job, cluster, version)


def planned_by(rank: int) -> tuple[str, str, bool]:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, policy=OnlyPlans())
    train(net, opt, rank, steps=6)
    policy = session_of(net).plan.policy
    bytelane.replan(net, policy=make_planner("fifo", Knobs()).plan)
    train(net, opt, rank, steps=2)
    return policy, session_of(net).plan.policy, session_of(net).find_planner("auto") is None


def test_a_planner_or_a_function_of_ones_own_plans(two_ranks: Pool) -> None:
    assert two_ranks.run(planned_by) == [("p3", "fifo", True)] * 2


class Slowest:
    """A tuner that tries some policies, and stays with the one that it was told to be slowest."""

    def __init__(self, *policies: str) -> None:
        self.space = Space(policies)
        self.told: dict[Setting, float] = {}

    def begin(self, context: Context) -> None:
        pass

    def ask(self) -> Setting:
        untried = [one for one in map(Setting, self.space.policies) if one not in self.told]
        return untried[0] if untried else max(self.told, key=lambda one: self.told[one])

    def tell(self, trial: Trial) -> None:
        self.told[trial.setting] = trial.seconds or 0.0


def tuned(rank: int) -> tuple[list[str], bool, int]:
    net, opt = make()
    tuner = Slowest("fifo", "mg-wfbp")
    planner = TunedPlanner(tuner, needs_network=False)
    bytelane.prepare(net, opt, timeout_s=30, policy=planner)
    policies = []
    for step in range(18):
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        opt.step()
        policies.append(session_of(net).plan.policy)
    same = equal(weights(net), trained_by_ddp(rank, "chain", "momentum", steps=18))
    return policies, same, len(tuner.told)


def test_a_tuner_tries_settings_while_training_goes_on(two_ranks: Pool) -> None:
    (policies, same, told), (other_policies, also_same, _) = two_ranks.run(tuned)
    assert same
    assert also_same
    assert policies == other_policies
    assert list(dict.fromkeys(policies)) == ["buckets", "fifo", "mg-wfbp"]
    assert told == 2


class Thirsty(Own):
    """A planner that needs a measured network."""

    name = "thirsty"
    needs_network = True


@pytest.mark.parametrize("granted", [Wish.NOTHING, Wish.PLAN, Wish.CORRECT])
def test_a_planner_waits_for_the_network_that_it_needs(
    granted: Wish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 may propose it after the round has begun whose wish the others have heard."""
    control = SimpleNamespace(rank=0, size=2)
    carrier: Any = SimpleNamespace(control=control, fit=lambda plan, trained: plan)
    probed: list[Wish] = []

    def probe() -> Link:
        probed.append(granted)
        return Link(1e6)

    first, thirsty = Own(), Thirsty()
    watch: Any = None
    planning = Planning("model", first, watch, carrier, probe=probe)
    job = Job("one", (Layer("l", 1.0, 1.0),), (Tensor("t", 8, (0,)),))
    monkeypatch.setattr(planning, "_measure", lambda *_: job)
    monkeypatch.setattr(agreement, "share_plan", lambda plan, _: plan)
    planning.propose(thirsty)
    parameters: Any = None
    planning.next_plan(parameters, set(), 3, granted)
    assert len(first.began_and_ended) == 1
    assert not thirsty.began_and_ended
    assert planning.wish is Wish.MEASURE_AND_PLAN
    planning.next_plan(parameters, set(), 4, planning.wish)
    assert len(thirsty.began_and_ended) == len(probed) == 1
    assert planning.wish is Wish.NOTHING


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"policy": 3}, "policy is 3; it must be a name, a Planner, or a function that plans"),
        ({"policy": Own}, "policy is <class .*Own'>; it must be a name, a Planner"),
        ({"policy": Own(), "partition": 8}, "partition has no effect under a planner of your own"),
        ({"policy": "auto", "lanes": 2}, "lanes has no effect under policy auto"),
    ],
)
def test_what_cannot_plan_is_refused(
    two_ranks: Pool, asked: dict[str, Any], complaint: str
) -> None:
    net, opt = make()
    with pytest.raises(InputError, match=complaint):
        bytelane.prepare(net, opt, **asked)
    with pytest.raises(InputError, match=complaint):
        bytelane.replan(net, **asked)


def asked_for(rank: int) -> list[str]:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, **POLICIES[3])
    policies = []
    for step in range(9):
        if step == 5:
            bytelane.replan(net, policy="fifo" if rank == 0 else "p3")
        opt.zero_grad()
        loss_of(net, rank, step).backward()
        opt.step()
        policies.append(session_of(net).plan.policy)
    return policies


def test_what_rank_0_asks_for_is_done_one_step_later_on_all(two_ranks: Pool) -> None:
    first, second = two_ranks.run(asked_for)
    assert first == second == ["buckets"] * 3 + ["bytescheduler"] * 3 + ["fifo"] * 3


def test_a_change_to_something_unknown_is_refused(two_ranks: Pool) -> None:
    net, _ = make()
    with pytest.raises(InputError, match="did you mean fifo"):
        bytelane.replan(net, policy="fifoo")


# --- recordings ----------------------------------------------------------------------------------


def recorded(rank: int, path: str) -> None:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, trace=path, **POLICIES[3])
    train(net, opt, rank, steps=6)
    weights(net)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, two_ranks: Pool) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    two_ranks.run(recorded, path=str(folder / "deep" / "rank{rank}.jsonl"))
    return folder / "deep"


@pytest.mark.parametrize("rank", range(2))
def test_a_run_can_be_stepped_through_again(recording: Path, rank: int) -> None:
    rounds = list(replay(recording / f"rank{rank}.jsonl"))
    assert [found.line.step for found in rounds] == list(range(6))
    assert [found.plan.plan.policy for found in rounds] == ["buckets"] * 3 + ["bytescheduler"] * 3
    assert not any(found.difference for found in rounds)
    assert all(found.seconds > 0 for found in rounds)


def _rewritten(recording: Path, tmp_path: Path, change: Any) -> Path:
    path = tmp_path / "changed.jsonl"
    lines = [change(line) for line in read(recording / "rank0.jsonl")]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines if line))
    return path


def test_a_run_that_launched_in_another_order_is_noticed(recording: Path, tmp_path: Path) -> None:
    def swap(line: PlanLine | RoundLine) -> PlanLine | RoundLine:
        if isinstance(line, RoundLine) and line.step == 4:
            a, b, *others = line.launched
            return msgspec.structs.replace(line, launched=(b, a, *others))
        return line

    path = _rewritten(recording, tmp_path, swap)
    odd = [found for found in replay(path) if found.difference]
    assert [found.line.step for found in odd] == [4]
    assert "launched 1 (" in odd[0].difference
    assert "where the core says 0 (" in odd[0].difference
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 1
    assert "1 of 6 rounds differ" in done.output


def test_a_run_that_launched_less_or_heard_the_impossible_is_noticed(
    recording: Path, tmp_path: Path
) -> None:
    def spoil(line: PlanLine | RoundLine) -> PlanLine | RoundLine:
        if isinstance(line, RoundLine) and line.step == 4:
            return msgspec.structs.replace(line, launched=line.launched[:-1])
        if isinstance(line, RoundLine) and line.step == 5:
            return msgspec.structs.replace(line, events=line.events[::-1])
        return line

    odd = [f.difference for f in replay(_rewritten(recording, tmp_path, spoil)) if f.difference]
    assert "operations, where the core says" in odd[0]
    assert "is not in flight" in odd[1]


def test_a_run_that_was_killed_is_read_up_to_its_last_whole_line(
    recording: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_bytes((recording / "rank0.jsonl").read_bytes()[:-40])
    assert len(list(replay(path))) == 5


def test_the_command_tells_what_it_found(recording: Path) -> None:
    done = CliRunner().invoke(app, ["replay", str(recording / "rank0.jsonl")])
    assert done.exit_code == 0
    assert "6 rounds, all as the core decides" in done.output
    done = CliRunner().invoke(app, ["replay", str(recording / "rank0.jsonl"), "--json"])
    assert json.loads(done.output) == {"rounds": 6, "differences": []}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "there is no such file"),
        (b'{"type":"plan"}\n', "line 1: Object missing required field"),
        (b"hello\n", "is not a recording: line 1"),
        (b'{"type":"planz\xadu":{}}\n', "is not a recording: line 1: 'utf-8' codec"),
        (b"", "holds no round"),
        (
            b'{"type":"round","step":0,"number":0,"events":[],"launched":[]}\n',
            "no plan comes before it",
        ),
    ],
)
def test_what_is_not_a_recording_is_named(
    tmp_path: Path, text: bytes | None, complaint: str
) -> None:
    path = tmp_path / "file.jsonl"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(InputError, match=complaint):
        list(replay(path))


# --- comparing weights ---------------------------------------------------------------------------


def verified(rank: int, spoil: bool) -> str:
    net, opt = make()
    bytelane.prepare(net, opt, verify=True, timeout_s=30, **POLICIES[3])
    try:
        for step in range(6):
            opt.zero_grad()
            loss_of(net, rank, step).backward()
            opt.step()
            if spoil and rank == 1 and step == 4:
                with torch.no_grad():
                    net[2].bias[7] += 1e-7
    except (WeightsDiffer, PeerFailed) as error:  # PeerFailed: another rank was quicker to notice
        return str(error)
    return "all equal"


def test_weights_that_part_are_named_on_every_rank(two_ranks: Pool) -> None:
    assert two_ranks.run(verified, spoil=False) == ["all equal", "all equal"]
    for message in two_ranks.run(verified, spoil=True):
        assert "2.bias differs between ranks: rank 1 does not hold what rank 0" in message


# --- how it is going -----------------------------------------------------------------------------


def told(rank: int) -> list[Any]:
    net, opt = make()
    bytelane.prepare(net, opt, timeout_s=30, **POLICIES[3])
    before = bytelane.status(net)
    train(net, opt, rank, steps=6)
    return [before, bytelane.status(net)]


def test_status_tells_how_it_is_going(two_ranks: Pool) -> None:
    for rank, (before, after) in enumerate(two_ranks.run(told)):
        assert (before.rank, before.workers, before.step) == (rank, 2, 0)
        assert (before.policy, before.iteration_s) == ("buckets", None)
        assert (after.policy, after.step, after.plan_version) == ("bytescheduler", 6, 2)
        assert after.tensors == 8
        assert after.gradient_bytes == sum(4 * p.numel() for p in make()[0].parameters())
        assert after.iteration_s > 0
        assert after.failure == ""


def test_without_other_workers_there_is_no_status() -> None:
    assert bytelane.status(make()[0]) is None


def unprepared(rank: int) -> list[str]:
    said = []
    for ask in (bytelane.status, lambda net: bytelane.no_sync(net).__enter__()):
        try:
            ask(make()[0])
        except bytelane.BytelaneError as error:
            said.append(str(error))
    return said


def test_a_model_that_was_not_prepared_is_named(two_ranks: Pool) -> None:
    for said in two_ranks.run(unprepared):
        assert said == ["this model was not prepared; call bytelane.prepare() first"] * 2
