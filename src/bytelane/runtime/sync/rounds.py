"""A plan in force: its transport and its engine, and the round that is open under it."""

from collections.abc import Callable, Iterable, Sequence

from bytelane.core import Plan
from bytelane.errors import TrainingError, TransferFailed
from bytelane.runtime.sync.engine import Engine
from bytelane.runtime.sync.peers import name_failure
from bytelane.runtime.sync.protocols import (
    Contribution,
    Framework,
    KnowsPeers,
    Transfer,
    Transport,
)
from bytelane.runtime.sync.tensor_states import Collected
from bytelane.trace.recording import PlanLine, Recorder, RoundLine

Carry = Callable[[Plan], Transport]


class Rounds:
    """Runs rounds under the plan in force, with its transport and engine."""

    def __init__(
        self,
        carry: Carry,
        *,
        peers: KnowsPeers,
        timeout_s: float,
        recorder: Recorder | None = None,
        make_engine: Callable[..., Engine] = Engine.of_plan,
    ) -> None:
        self.is_open = False
        """Whether a round has begun whose tensors have not all been settled."""
        self._carry = carry
        self._peers = peers
        self._timeout_s = timeout_s
        self._recorder = recorder
        self._make_engine = make_engine
        self._failure: TrainingError | None = None
        self._which = (0, 0)

    def install(self, plan: Plan, names: tuple[str, ...]) -> None:
        """Use this plan from now on; nothing of the last one may be in flight. All ranks do."""
        self.plan = plan
        self.transport = self._carry(plan)
        self.collected = Collected(plan)
        self._engine = self._make_engine(
            plan, self.transport, names, timeout_s=self._timeout_s, peers=self._peers
        )
        if self._failure is not None:
            self._engine.fail(self._failure)
        if self._recorder is not None:
            self._recorder.write(PlanLine(plan, names))

    # --- one round -----------------------------------------------------------------------------

    def begin(self, framework: Framework, step: int, number: int, *, signal: int) -> None:
        """Begin a round, all ranks the same one."""
        framework.catch_up(self._engine)
        self._which = step, number
        self.collected.begin()
        self._engine.begin_iteration()
        self.transport.begin_round(step, number, signal=signal)
        self.is_open = True

    def close(self) -> None:
        """End a round of which everything has been settled."""
        self.is_open = False
        if self._recorder is not None:
            events, launched = tuple(self._engine.events), tuple(self._engine.launched)
            self._recorder.write(RoundLine(*self._which, events, launched))

    def send(self, contributions: Sequence[Contribution]) -> None:
        """Let these take part; they are not touched until they have arrived."""
        try:  # not a context manager: this runs for every operation
            self.transport.take(contributions)
            self._engine.notify_ready(*[contribution.tensor for contribution in contributions])
        except Exception as error:  # gloo's errors, too: a broken group refuses at once
            if isinstance(self._engine.failure, TransferFailed):
                raise name_failure(self._engine.failure, self._peers) from error
            raise

    def missing_before(self, tensors: Iterable[int], missing: set[int]) -> list[int]:
        """Return which of the missing gradients must come before these tensors can arrive."""
        return self._engine.operations.missing_before(tensors, missing)

    def wait(self, framework: Framework, tensors: Sequence[int]) -> None:
        """Order later work after these tensors, in the framework's way."""
        framework.wait(self._engine, tensors)

    def arrived(self, tensors: Iterable[int]) -> list[int]:
        """Return those among these tensors that have arrived, without waiting."""
        return self._engine.arrived(tensors)

    def unused(self) -> set[int]:
        """Return which tensors no rank's backward pass has reached in the last round."""
        tensors = range(len(self.plan.tensor_bytes))
        return {tensor for tensor in tensors if not self.transport.was_used(tensor)}

    @property
    def transfers(self) -> list[Transfer]:
        """The transfers of this round that are over."""
        return self._engine.transfers

    # --- the end -------------------------------------------------------------------------------

    @property
    def failure(self) -> TrainingError | None:
        """The error with which every call is refused; None if there was none."""
        return self._failure or self._engine.failure

    def fail(self, error: TrainingError) -> None:
        """Refuse every call from now on; callable from any thread."""
        self._failure = self._failure or error
        self._engine.fail(error)

    def disown(self, error: TrainingError) -> None:
        """Refuse every call, in a forked child."""
        self._failure = error
        self._engine.disown(error)

    def drain(self, limit_s: float) -> bool:
        """Tell whether nothing is in flight within this time."""
        return self._engine.drain(limit_s)
