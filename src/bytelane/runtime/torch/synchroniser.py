"""Sum gradients over the ranks, a round at a time, as the plan in force says.

A round sums every tensor once. Usually it is one backward pass; a second backward pass before
``step()`` is a second round.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from bytelane.core import Plan
from bytelane.errors import TrainingError, TransferFailed
from bytelane.runtime.engine import Engine, Transfer
from bytelane.runtime.torch.control import KnowsPeers, name_failure
from bytelane.runtime.torch.groups import Groups
from bytelane.runtime.torch.ring_transport import RingTransport
from bytelane.runtime.torch.trained import Trained
from bytelane.runtime.torch.transport import AllReduceTransport, Gradient, GradientTransport
from bytelane.trace.recording import PlanLine, Recorder, RoundLine


def carrier_of(plan: Plan) -> type[GradientTransport]:
    """Return what carries a plan's operations: all-reduces, or our own ring in two halves."""
    return RingTransport if plan.gather_order else AllReduceTransport


class Synchroniser:
    """One rank's side of all rounds."""

    def __init__(
        self,
        groups: Groups,
        *,
        peers: KnowsPeers,
        timeout_s: float,
        recorder: Recorder | None = None,
        make_engine: Callable[..., Engine] = Engine,
    ) -> None:
        self.is_open = False
        """Whether a round has begun whose tensors have not all been settled."""
        self._groups = groups
        self._timeout_s = timeout_s
        self._peers = peers
        self._recorder = recorder
        self._make_engine = make_engine
        self._round = (0, 0)
        self._failure: TrainingError | None = None

    def install(self, plan: Plan, trained: Trained) -> None:
        """Use this plan from now on; nothing of the last one may be in flight. All ranks do."""
        self.transport: GradientTransport = carrier_of(plan)(
            plan,
            trained.dtypes,
            self._groups.lanes(plan.lanes),
            trained.names,
            launched=self._peers.count,
        )
        self._engine = self._make_engine(
            plan,
            self.transport,
            tensor_names=trained.names,
            timeout_s=self._timeout_s,
            finished=self._peers.count_finished,
            still_waiting=self._peers.still_waiting,
            who_is_behind=self._peers.who_is_behind,
        )
        if self._failure is not None:
            self._engine.fail(self._failure)
        if self._recorder is not None:
            self._recorder.write(PlanLine(plan, trained.names))

    @property
    def plan(self) -> Plan:
        return self._engine.plan

    @property
    def failure(self) -> TrainingError | None:
        return self._failure or self._engine.failure

    @property
    def transfers(self) -> list[Transfer]:
        """What has been carried in this round."""
        return self._engine.transfers

    @property
    def signalled(self) -> int:
        """Tell, of a round that is over, what rank 0 would like."""
        return self.transport.signalled

    def open(self, step: int, number: int, *, signal: int) -> None:
        """Begin a round, all ranks the same one."""
        self._round = step, number
        with self._naming_who_is_lost():
            self._engine.begin_iteration()
        self.transport.begin_round(step, number, signal=signal)
        self.is_open = True

    def close(self) -> None:
        """End a round of which everything has been settled."""
        self.is_open = False
        if self._recorder is not None:
            events, launched = tuple(self._engine.events), tuple(self._engine.launched)
            self._recorder.write(RoundLine(*self._round, events, launched))

    def take(self, gradients: Sequence[Gradient]) -> None:
        """Let gradients take part in the round; not to be touched until they have arrived."""
        try:  # and no context manager: this is done for every operation
            self.transport.take(gradients)
            self._engine.notify_ready(*[gradient.tensor for gradient in gradients])
        except Exception as error:  # of gloo's, too: a group that is broken refuses at once
            if isinstance(self._engine.failure, TransferFailed):
                raise name_failure(self._engine.failure, self._peers) from error
            raise

    def forget(self, tensor: int) -> None:
        """Let go of a gradient that has arrived."""
        self.transport.forget(tensor)

    def missing(self) -> list[int]:
        """Return the tensors that have not taken part in this round yet."""
        return self._engine.unready()

    def missing_before(self, tensors: Iterable[int]) -> list[int]:
        """Return the tensors without which these cannot arrive."""
        return self._engine.unready_before(tensors)

    def arrived(self, tensors: Iterable[int]) -> list[int]:
        """Return those among these tensors that have arrived, without waiting."""
        with self._naming_who_is_lost():
            return self._engine.arrived(tensors)

    def was_used(self, tensor: int) -> bool:
        """Tell, of a tensor that has arrived, whether any rank's backward pass has reached it."""
        return self.transport.used_by_anybody[tensor]

    def wait(self, tensors: Iterable[int]) -> None:
        """Return when these have arrived; raise what went wrong instead, and who is the reason."""
        with self._naming_who_is_lost():
            self._engine.wait(tensors)

    @contextmanager
    def _naming_who_is_lost(self) -> Iterator[None]:
        """Whoever meets a failure first says why: a transfer fails before it is known who died."""
        try:
            yield
        except TransferFailed as error:
            raise name_failure(error, self._peers) from error

    def drain(self, limit_s: float) -> bool:
        """Tell whether nothing is in flight within this time."""
        return self._engine.drain(limit_s)

    def disown(self, error: TrainingError) -> None:
        """Refuse everything, in a forked child."""
        self._failure = error
        self._engine.disown(error)

    def fail(self, error: TrainingError) -> None:
        """Refuse everything from now on; callable from any thread."""
        self._failure = self._failure or error
        self._engine.fail(error)
