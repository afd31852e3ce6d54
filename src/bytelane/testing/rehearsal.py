"""Rehearse an iteration: give the scheduler events in random order, and check each answer.

A gradient may be ready at any time, and a message may be over at any time after it was started.
"""

from random import Random
from typing import NamedTuple

import numpy as np

from bytelane.core import Plan, Policy, Scheduler, Start
from bytelane.core.kernel import NO_LIMIT
from bytelane.job import Job


class Message(NamedTuple):
    """Pieces that the scheduler has started in one go."""

    stage: int
    pieces: tuple[int, ...]
    bytes: int
    in_flight_bytes: int
    """In the same stage, when it was started."""


class Moment(NamedTuple):
    """One event, and the messages that the scheduler started at it."""

    kind: str
    which: int
    """A tensor that is ready, or the number of a message that is over."""
    started: tuple[int, ...]
    """Numbers of messages."""


class Rehearsal:
    """One iteration: the messages started, the mistakes, and whether all pieces arrived."""

    def __init__(self, policy: Policy, job: Job, seed: int) -> None:
        self.messages: list[Message] = []
        self.moments: list[Moment] = []
        self.complaints: list[str] = []
        self._policy, self._job = policy, job
        self._parts = policy.cut(job).sub_tasks()
        self._bytes = [sum(part.bytes for part in parts) for parts in self._parts]
        self._scheduler = Scheduler.of_policy(policy, job)
        shape = (len(policy.stages), len(self._parts))
        self._started, self._over = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        self._in_flight = [0] * len(policy.stages)
        self._play(Random(seed))

    @property
    def all_came_home(self) -> bool:
        """Tell whether every piece has passed every stage and no tensor is waited for."""
        return bool(self._over.all()) and self._scheduler.synchronised

    @property
    def left_behind(self) -> list[str]:
        """Name the pieces that have not passed a stage."""
        return [
            f"{self._policy.stages[stage].collective} of piece {piece}"
            for stage, piece in np.argwhere(~self._over).tolist()
        ]

    def _play(self, random: Random) -> None:
        waiting, flying = list(range(len(self._job.tensors))), list[int]()
        while waiting or flying:
            choice = random.randrange(len(waiting) + len(flying))
            if choice < len(waiting):
                kind, which = "ready", waiting.pop(choice)
                starts = self._scheduler.notify_ready(which, 0.0)
            else:
                kind, which = "over", flying.pop(choice - len(waiting))
                starts = self._end(self.messages[which])
            new = self._take_note(starts)
            flying += new
            self.moments.append(Moment(kind, which, tuple(new)))
            self._look_for_idleness()

    def _end(self, message: Message) -> list[Start]:
        starts = []
        for piece in message.pieces:
            operation = message.stage * len(self._parts) + piece
            self._over[message.stage, piece] = True
            self._in_flight[message.stage] -= self._bytes[piece]
            starts += self._scheduler.notify_finish(operation, 0.0)
        return starts

    def _take_note(self, starts: list[Start]) -> list[int]:
        first = len(self.messages)
        for start in starts:
            stage, piece = divmod(start.operation, len(self._parts))
            if self._started[stage, piece]:
                self.complaints.append(f"{self._describe(stage, piece)} was started twice")
            if not self._is_there(stage, piece):
                self.complaints.append(f"{self._describe(stage, piece)} was started too early")
            if self._is_alone(stage):
                self.complaints.append(
                    f"{self._describe(stage, piece)} was started beside the first"
                )
            self._started[stage, piece] = True
            size = self._bytes[piece]
            if start.joined:
                last = self.messages.pop()
                joined = (*last.pieces, piece)
                self.messages.append(last._replace(pieces=joined, bytes=last.bytes + size))
            else:
                self.messages.append(Message(stage, (piece,), size, self._in_flight[stage]))
            self._in_flight[stage] += size
        return list(range(first, len(self.messages)))

    def _is_there(self, stage: int, piece: int) -> bool:
        if stage == 0:
            return all(self._scheduler.is_ready(part.tensor) for part in self._parts[piece])
        before = self._over[stage - 1]
        return bool(before.all() if self._policy.stages[stage].after_all else before[piece])

    def _look_for_idleness(self) -> None:
        for number, stage in enumerate(self._policy.stages):
            if self._in_flight[number] >= stage.window.limit or self._is_alone(number):
                continue
            for piece in np.flatnonzero(~self._started[number]).tolist():
                if self._is_there(number, piece):
                    self.complaints.append(
                        f"{self._describe(number, piece)} was not started, although it is there "
                        f"and only {self._in_flight[number]} bytes are in flight"
                    )

    def _is_alone(self, stage: int) -> bool:
        """Tell whether the first piece is under way and must stay alone."""
        has_window = self._policy.stages[stage].window.limit < NO_LIMIT
        under_way = self._started[stage, :1] & ~self._over[stage, :1]
        return self._policy.first_unit_alone and has_window and bool(under_way.any())

    def _describe(self, stage: int, piece: int) -> str:
        return f"{self._policy.stages[stage].collective} of piece {piece}"


def replay(rehearsal: Rehearsal, plan: Plan) -> list[tuple[int, ...]]:
    """Give a plan the same events; return which messages start at each of them.

    The replay ends where a message finishes that the plan has not started.
    """
    scheduler = Scheduler.of_plan(plan)
    numbers = _numbers(rehearsal, len(plan.operations))
    messages = {number: message for message, number in enumerate(numbers)}
    answers = []
    flying: set[int] = set()
    for moment in rehearsal.moments:
        if moment.kind == "ready":
            starts = scheduler.notify_ready(moment.which, 0.0)
        elif moment.which in flying:
            starts = scheduler.notify_finish(numbers[moment.which], 0.0)
        else:
            break
        started = tuple(messages[start.operation] for start in starts)
        flying.update(started)
        answers.append(started)
    return answers


def _numbers(rehearsal: Rehearsal, operations: int) -> list[int]:
    """Return each message's number in a plan: those of a later stage follow all of the first."""
    first = {
        p: k for k, sent in enumerate(rehearsal.messages) if not sent.stage for p in sent.pieces
    }
    return [sent.stage * operations + first[sent.pieces[0]] for sent in rehearsal.messages]
