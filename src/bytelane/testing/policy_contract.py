"""Contract tests of a policy: one rule per test."""

from importlib.util import find_spec

import numpy as np
import pytest

from bytelane.core import Plan, choose_knobs, require_plannable
from bytelane.errors import InputError
from bytelane.knob import CREDIT, FAMILIAR, FUSION, PARTITION
from bytelane.sim import Simulation, simulate
from bytelane.sim.optimal import optimal_iteration_s
from bytelane.testing import sound
from bytelane.testing.contract import ContractBroken, require, rule
from bytelane.testing.rehearsal import Rehearsal, replay
from bytelane.testing.trial import Trial
from bytelane.testing.worlds import World, deep_job, some_values

ROUNDING = 1e-9


class PolicyContract(Trial):
    """The rules that every engine and command relies on. Subclass it and name your policy.

    Import the module that registers it first, or let it be installed with an entry point. Each
    rule is tried in odd worlds and then in random ones. Where one is broken, the rules that build
    on it are skipped and name it: one mistake is one failure.
    """

    @rule
    def test_it_says_in_one_line_what_it_does(self) -> None:
        """Its docstring begins with one line that says what it does.

        Tables and the docs show only that line, so most users read nothing else of it.
        """
        line = self._entry.doc
        require(bool(line), "it has no docstring")
        require(len(line) <= 100, f"the first line of its docstring has {len(line)} characters")

    @rule
    def test_it_is_made_for_every_job_and_cluster(self) -> None:
        """It can be made for every job and every cluster of the kinds it registers for.

        Jobs without tensors, layers without parameters, tied weights and a single worker are all
        ordinary. Only for knobs may it refuse, by an InputError that says what would be right.
        """
        require(bool(self._ways), "it registers for no way of synchronising")

        def check(world: World) -> None:
            try:
                self._make(world)
            except Exception as error:
                if isinstance(error, InputError) and world.knobs is not None:
                    return
                found = f"{type(error).__name__}: {error}; for {world}"
                raise ContractBroken(found) from error

        for world in self._usual_worlds(deep_job()):
            check(world)
        self._everywhere(check)

    @rule
    def test_it_is_plain_data(self) -> None:
        """It is a Policy under its own name that survives being written and read again.

        Policies travel between ranks, processes and files. Priorities must be Python's own
        integers: fractions would be cut off, and then tensors tie that should not.
        """
        self._everywhere_passes(sound.not_plain_data)

    @rule
    def test_it_fits_the_job(self) -> None:
        """It has a priority for every tensor in every stage, and no setting disables another.

        The kernel does not check its input. A table too short reads the wrong tensor's row, and a
        setting that another one switches off would be silently ignored.
        """
        self._everywhere_passes(sound.not_fitting)

    @rule
    def test_every_byte_is_sent_exactly_once(self) -> None:
        """Its pieces cover every byte of every tensor exactly once.

        A byte that is left out keeps another value on every worker; one that is sent twice is
        summed twice. Training goes on without an error in both cases.
        """
        self._everywhere_passes(sound.not_covering)

    @rule
    def test_its_stages_are_a_whole_synchronisation(self) -> None:
        """Its stages add up to one all-reduce, or to one push and one pull after it.

        Half a synchronisation looks like a fast one. A reduce-scatter and an all-gather are one
        half of an all-reduce each; tensors pushed to a server have to be pulled.
        """
        self._everywhere_passes(sound.not_whole)

    @rule
    def test_everything_comes_home(self) -> None:
        """In whatever order gradients become ready and messages finish, every tensor arrives.

        No piece may start before its gradients are ready, and no ready piece may wait while its
        window is open. Otherwise an iteration waits for ever, on all workers.
        """

        def check(world: World) -> None:
            rehearsal = Rehearsal(self._sound(world), world.job, world.seed)
            require(not rehearsal.complaints, f"{rehearsal.complaints[:1]} for {world}")
            behind = rehearsal.left_behind[:3]
            require(rehearsal.all_came_home, f"{behind} never finished, for {world}")

        self._everywhere(check)

    @rule
    def test_the_window_is_kept(self) -> None:
        """No message starts unless fewer bytes than the credit are in flight in its stage.

        A message in flight cannot be overtaken any more. The credit limits how much is in flight,
        to less than the credit plus one message. A tuner that turns it relies on that.
        """
        credit_is_declared = self._entry.knob(CREDIT.name) is not None

        def check(world: World) -> None:
            policy = self._sound(world)
            credit = self._knobs(world).credit_bytes if credit_is_declared else None
            for message in Rehearsal(policy, world.job, world.seed).messages:
                stage = policy.stages[message.stage]
                limit = stage.window.limit if credit is None else credit
                require(
                    message.in_flight_bytes < limit,
                    f"a {stage.collective} starts while {message.in_flight_bytes} bytes are in "
                    f"flight and the credit is {limit}, for {world}",
                )

        self._everywhere(check)

    @rule
    def test_nothing_is_larger_than_its_knobs_allow(self) -> None:
        """No piece is larger than the partition, and no two tensors travel in more than the fusion.

        Knobs mean the same under every policy, so that a user or a tuner can turn them without
        knowing the policy.
        """
        has_partition, has_fusion = map(self._entry.knob, (PARTITION.name, FUSION.name))

        def check(world: World) -> None:
            policy, knobs = self._sound(world), self._knobs(world)
            pieces = policy.cut(world.job).sub_tasks()
            largest = max((sum(part.bytes for part in parts) for parts in pieces), default=0)
            if has_partition and knobs.partition_bytes is not None:
                require(
                    largest <= knobs.partition_bytes,
                    f"a piece of {largest} bytes and a partition of {knobs.partition_bytes}, "
                    f"for {world}",
                )
            for message in Rehearsal(policy, world.job, world.seed).messages:
                tensors = {part.tensor for piece in message.pieces for part in pieces[piece]}
                if has_fusion and len(tensors) > 1:
                    require(
                        message.bytes <= (knobs.fusion_bytes or 0),
                        f"{len(tensors)} tensors in one message of {message.bytes} bytes and a "
                        f"fusion of {knobs.fusion_bytes}, for {world}",
                    )

        self._everywhere(check)

    @rule
    def test_a_declared_knob_has_an_effect(self) -> None:
        """A knob that it declares changes it, or is refused where it cannot.

        Otherwise users turn a knob in vain, and tuners search in a direction in which there is
        nothing to find.
        """
        for knob in self._entry.knobs:
            values = some_values(knob)
            for world in self._wide_worlds():
                made = list(self._made_with_values(world, knob))
                require(
                    not made or any(other != made[0] for other in made),
                    f"{knob.key} from {values[0]} to {values[-1]} makes no difference, for {world}",
                )

    @rule
    def test_an_undeclared_knob_has_none(self) -> None:
        """A knob that it does not declare is refused, and not read.

        Commands refuse it as having no effect; a policy that reads it anyway has a hidden setting
        that no user can turn.
        """
        hidden = [knob for knob in FAMILIAR if self._entry.knob(knob.name) is None]
        for knob in hidden:
            with pytest.raises(InputError, match="no effect"):
                choose_knobs(self.policy, **{knob.key: 8})
            for world in self._wide_worlds():
                usual = self._made(world)
                if self._made(world) != usual:
                    pytest.skip("it differs from call to call; see the rule about that")
                for made in self._made_with_values(world, knob):
                    require(made == usual, f"{knob.key} changes it, for {world}")

    @rule
    def test_the_same_question_has_the_same_answer(self) -> None:
        """The same job, cluster and knobs make the same policy, whatever was made in between.

        Results can then be repeated and compared, and a rank that joins later makes the plan that
        the others follow.
        """
        others = self._wide_worlds()

        def check(world: World) -> None:
            first = self._sound(world)
            for other in others:
                self._made(other)
                require(self._sound(world) == first, f"it differs from call to call, for {world}")

        self._everywhere(check)

    @rule
    def test_it_is_never_faster_than_the_optimum(self) -> None:
        """No iteration is shorter than its computing, its bytes on the link, or the optimum.

        The optimum has an ideal link and no overhead. A policy that beats it has not sent all
        bytes, or has sent them over a link that does not exist.
        """

        def check(world: World) -> None:
            found = self._simulate(world)
            wire_s = world.cluster.wire_factor * world.job.total_bytes / world.cluster.link.slower
            least_s = max(found.compute_s, wire_s, optimal_iteration_s(world.job, world.cluster))
            require(
                found.iteration_s >= least_s * (1 - ROUNDING),
                f"{found.iteration_s} s where {least_s} s are needed, for {world}",
            )

        self._everywhere(check)

    @rule
    def test_compiled_equals_interpreted(self) -> None:
        """The compiled and the interpreted simulator agree on it bit for bit.

        The interpreted simulator makes plans, the compiled one sweeps. If they differ, predictions
        are about another policy than the one that runs.
        """
        if find_spec("numba") is None:
            pytest.skip("numba is not installed (pip install 'bytelane[sim]')")

        def check(world: World) -> None:
            policy = self._sound(world)
            fast = simulate(world.job, world.cluster, policy, "compiled")
            slow = simulate(world.job, world.cluster, policy, "interpreted")
            require(_same_bits(fast, slow), f"they differ for {world}")

        self._everywhere(check, exact=False)

    @rule
    def test_its_plan_replays_to_the_same_order(self) -> None:
        """Its recorded plan, given the same events, starts the same operations at each of them.

        Ranks decide nothing while they train. They follow a plan that was recorded once, and the
        prediction holds only if following it is the same as deciding.
        """
        if "allreduce" not in self._ways:
            pytest.skip("plans are for all-reduce")

        def check(world: World) -> None:
            policy = self._sound(world)
            try:
                require_plannable(policy)
            except InputError as error:
                pytest.skip(str(error))
            rehearsal = Rehearsal(policy, world.job, world.seed)
            messages = [sent.pieces for sent in rehearsal.messages if sent.stage == 0]
            pieces: list[list[int]] = [[] for _ in policy.stages]
            for sent in rehearsal.messages:
                pieces[sent.stage].extend(sent.pieces)
            plan = Plan.record(policy, world.job, policy.cut(world.job), messages, 1, pieces[1:])
            answers = replay(rehearsal, Plan.decode(plan.encode()))
            wanted = [moment.started for moment in rehearsal.moments]
            require(answers == wanted, f"{answers} instead of {wanted}, for {world}")
            found = self._simulate(world)
            again = simulate(world.job, world.cluster, found.plan(), "interpreted")
            require(
                again.iteration_s == found.iteration_s,
                f"{again.iteration_s} s by its plan, {found.iteration_s} s without, for {world}",
            )

        self._everywhere(check, "allreduce")


def _same_bits(one: Simulation, other: Simulation) -> bool:
    if one.log is None or other.log is None:
        return one.iteration_s == other.iteration_s
    pairs = zip(one.log, other.log, strict=True)
    return one.iteration_s == other.iteration_s and all(
        np.array_equal(mine, its, equal_nan=True) for mine, its in pairs
    )
