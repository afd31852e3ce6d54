"""Sum tensors over the ranks, round by round, and bring them up to date when they are needed.

Usually a round is a backward pass. A second backward pass before ``step()`` is a second round, and
tensors that no backward pass has reached take part too, or the other ranks would wait for them.

*Settling* waits for a tensor and finishes what it is owed. Tensors are settled before they are
used: by modules before their forward, by the access guard before any other use. Updates are made
only in the thread that settles, so no tensor changes while the user's code reads it.
"""

from collections.abc import Iterable

from bytelane.core import Plan
from bytelane.errors import NotSupported, TrainingError
from bytelane.runtime.sync.failures import Failures
from bytelane.runtime.sync.protocols import Contribution, Exchange, Framework, KnowsPeers, Plans
from bytelane.runtime.sync.rounds import Rounds
from bytelane.runtime.sync.tensor_states import Happening, Tensors


class Synchroniser:
    """One rank's side of all rounds of one model."""

    def __init__(
        self,
        exchange: Exchange,
        framework: Framework,
        rounds: Rounds,
        *,
        plans: Plans,
        peers: KnowsPeers,
    ) -> None:
        self.rounds = rounds
        self.failures = Failures(peers, self._where_the_weights_are)
        self.step = 0
        """How often the optimizers have stepped."""
        self.number = 0
        """How many rounds there were since the last step."""
        self._exchange = exchange
        self._framework = framework
        self._plans = plans
        self._updated = 0  # tensors, since the round began
        self._half_updated = 0  # tensors whose update has raised

    def begin_with(self, plan: Plan, local: Iterable[int] = ()) -> None:
        """Sum the tensors of this plan from now on; ``local`` ones have a gradient already."""
        self.tensors = Tensors(len(plan.tensor_bytes), local)
        self.install(plan)

    def install(self, plan: Plan) -> None:
        """Use this plan from now on; nothing of the last one may be in flight. All ranks do."""
        self.rounds.install(plan, self._exchange.names)

    # --- rounds --------------------------------------------------------------------------------

    def open_round(self) -> None:
        """Begin a round unless one is open; all ranks do so, before their first gradient of it."""
        if self.rounds.is_open:
            return
        self.settle_owed()  # of modules that the last forward pass has left out
        with self.failures.told(), self._framework.undisturbed():
            granted, unused = self.rounds.transport.signalled, self.rounds.unused
            plan = self._plans.next_plan(self.step, self.number, granted, unused)
            if plan is not None:
                self.install(plan)
            with self.failures.named():
                self.rounds.begin(
                    self._framework, self.step, self.number, signal=self._plans.signal
                )
        self.number += 1
        self._updated = 0
        self._framework.round_opened()

    def complete(self) -> None:
        """Let the tensors take part in the open round that no backward pass has reached."""
        if not self.rounds.is_open:
            return
        with self._framework.undisturbed():
            for tensor in sorted(self.tensors.missing):
                self._collect(tensor, used=self.tensors.is_local(tensor))
            self.hand_over()
        self._framework.round_completed()

    def land(self) -> None:
        """Finish the transfers of the open round; owed updates stay owed."""
        self.complete()
        self.settle(list(self.tensors.in_flight))

    def _close_if_over(self) -> None:
        if self.rounds.is_open and self.tensors.are_settled:
            self.tensors.close()
            self.rounds.close()
            self._framework.round_closed(self.rounds.plan, self.rounds.transfers)

    def shadow(self, step: int, number: int) -> None:
        """Take part in a round of the others without adding anything to it."""
        self.step, self.number = step, number
        self.open_round()
        everything = range(len(self.tensors))
        for what in (Happening.COLLECT, Happening.HAND_OVER, Happening.SETTLE):
            self.tensors.move_all(what, everything)
        nothing = self._exchange.lend_nothing
        self.rounds.send([Contribution(t, nothing(t), used=False) for t in everything])
        self.rounds.wait(self._framework, everything)
        self.tensors.close()
        self.rounds.close()

    def count_step(self) -> bool:
        """Record that an optimizer has stepped; tell whether that ends an iteration."""
        if not self.number:
            return False
        self.number = 0
        self.step += 1
        return True

    # --- gradients -----------------------------------------------------------------------------

    def accumulate(self, tensor: int) -> None:
        """Record that a backward pass has added to a gradient that is not to be summed yet."""
        if tensor in self.tensors.owed:
            raise _stale(self._exchange.names[tensor])
        self.tensors.move(Happening.ACCUMULATE, tensor)

    def take(self, tensor: int) -> None:
        """Let a complete gradient take part, in the next round if it already has in this one."""
        tensors = self.tensors
        if tensors.owed or not self.rounds.is_open or tensor not in tensors.missing:
            self._make_way_for(tensor)
        try:  # not a context manager: this runs for every gradient
            self._collect(tensor, used=True)
        except TrainingError as error:
            self.failures.tell_all(error)
            raise

    def _make_way_for(self, tensor: int) -> None:
        """Settle owed updates and finish the open round, so that this gradient can take part."""
        with self._framework.interrupting_backward():
            if tensor in self.tensors.owed:
                raise _stale(self._exchange.names[tensor])
            self.settle_owed()  # of modules that this forward pass has left out
            if self.rounds.is_open and tensor not in self.tensors.missing:
                self.land()
            self.open_round()

    def _collect(self, tensor: int, *, used: bool) -> None:
        self.tensors.move(Happening.COLLECT, tensor)
        if self.rounds.collected.add(tensor, used):
            self.hand_over()

    def hand_over(self) -> None:
        """Send the collected gradients, which have waited for the others of their operation."""
        if collected := self.rounds.collected.empty():
            with self._framework.plainly():
                contributions = []
                for tensor, used in collected:
                    contributions.append(
                        Contribution(tensor, self._exchange.lend(tensor, used), used)
                    )
                    self.tensors.move(Happening.HAND_OVER, tensor)
                self.rounds.send(contributions)

    def discard(self, tensors: set[int]) -> set[int]:
        """Discard these gradients; return those that are still under way."""
        self.tensors.move_all(Happening.DISCARD, tensors - self.tensors.in_flight)
        if tensors & self.tensors.in_flight:  # a backward pass without a step() of theirs
            self.complete()
            self.tensors.move_all(Happening.DISCARD, tensors & self.tensors.in_flight)
        return tensors & (self.tensors.in_flight | self.tensors.owed)

    # --- settling ------------------------------------------------------------------------------

    def defer(self, tensors: set[int]) -> list[int]:
        """On ``step()``: settle the tensors that have arrived; return the others, now owed."""
        arrived = self.arrived(tensors)
        self.settle(arrived)
        self._updated += len(arrived)  # by the user's own step(), which follows
        owed = sorted(tensors & self.tensors.in_flight)
        self.tensors.move_all(Happening.DEFER, owed)
        return owed

    def flush(self) -> None:
        """Bring all tensors up to date."""
        self.settle([*self.tensors.in_flight, *self.tensors.owed])

    def settle_owed(self) -> None:
        """Make every update that is owed."""
        if self.tensors.owed:
            self.settle(list(self.tensors.owed))

    def settle(self, tensors: Iterable[int]) -> None:
        """Wait for these tensors, and finish what they are owed."""
        tensors = list(tensors)
        taken = [t for t in tensors if t in self.tensors.in_flight]
        owed = [t for t in tensors if t in self.tensors.owed]
        if not taken and not owed:
            return
        with self._framework.undisturbed():
            late = len(self.arrived(owed)) < len(owed)
            self._wait([*taken, *owed])
            transport = self.rounds.transport
            for tensor in taken:
                transport.forget(tensor)
                self._exchange.give_back(tensor, transport.was_used(tensor))
                self._settle_one(tensor)
            if owed:
                # One step for many is cheaper than many steps, so update all that have arrived; but
                # not if the forward pass was held up: then it goes on as soon as it can.
                self._update(owed if late else self.arrived(self.tensors.owed))
            self._close_if_over()

    def arrived(self, tensors: Iterable[int]) -> list[int]:
        """Return those among these tensors that have arrived, without waiting."""
        with self.failures.told(), self.failures.named():
            return self.rounds.arrived(tensors)

    def _wait(self, tensors: list[int]) -> None:
        with self.failures.told():
            self.hand_over()
            if missing := self.rounds.missing_before(tensors, self.tensors.missing):
                if self._framework.in_backward():
                    names = self._exchange.names
                    raise NotSupported(
                        f"{names[tensors[0]]} was looked at within a backward pass, and cannot be "
                        f"synchronised before {names[missing[0]]} has its gradient; look at it "
                        "after backward()"
                    )
                self.complete()
            with self.failures.named():
                self.rounds.wait(self._framework, tensors)

    def _update(self, tensors: list[int]) -> None:
        for tensor in tensors:
            self.rounds.transport.forget(tensor)
        try:
            self._exchange.update(tensors, self.rounds.transport.was_used)
        except BaseException as error:
            self._refuse_half_updated(tensors, error)
            raise
        for tensor in tensors:
            self._settle_one(tensor)
        self._updated += len(tensors)

    def _settle_one(self, tensor: int) -> None:
        if self.tensors.is_discarded(tensor):
            self._exchange.forget(tensor)
        self.tensors.move(Happening.SETTLE, tensor)

    def _refuse_half_updated(self, tensors: list[int], error: BaseException) -> None:
        """Refuse every call from now on: an optimizer may have updated some of these tensors."""
        self._half_updated = len(tensors)
        others = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        failure = TrainingError(
            f"the update of {self._exchange.names[tensors[0]]}{others} failed: "
            f"{type(error).__name__}: {error}"
        )
        self.failures.tell_all(failure)
        self.rounds.fail(failure)
        if isinstance(error, Exception):
            raise failure from error
        error.add_note(self._where_the_weights_are())  # Ctrl-C stays Ctrl-C

    def _where_the_weights_are(self) -> str:
        owed = len(self.tensors.owed)
        if owed and (self._updated or self._half_updated):
            return (
                f"The weights are in the middle of step {self.step}: {self._updated} "
                f"tensors have their update, {owed - self._half_updated} have not"
                + (f", {self._half_updated} may have a part of it" if self._half_updated else "")
                + ". Go back to a checkpoint."
            )
        return f"The weights are those after step {self.step - 1 if owed else self.step}."


def _stale(name: str) -> TrainingError:
    return TrainingError(
        f"{name} was used before its last update had arrived, by code that is neither a module's "
        "forward nor a torch function; call bytelane.flush(model) before that use"
    )
