"""Exceptions that Bytelane raises on purpose.

::

    BytelaneError
    ├── InputError (also a ValueError)     an argument or a file that cannot be used
    │   ├── UnitError                      "10GB" where a rate was asked for
    │   ├── JobFileError                   a job file, named with the field that is wrong
    │   └── UnknownPolicy                  a policy name that is not registered
    ├── IllegalEvent                       the scheduler got an impossible event
    ├── LabError                           the laboratory cannot be built, or has broken
    │   └── LabTimeout                     a command in the laboratory did not end in time
    ├── MissingExtra                       an optional package is not installed
    └── TrainingError                      something failed while ranks train together
        ├── NotSupported                   refused before it could go wrong silently
        ├── OutOfMemory                    this rank has no memory for a message
        ├── PeerError                      another rank is the reason; ``rank`` says which
        │   ├── PeerFailed                 it raised an exception, which the message repeats
        │   ├── PeerFrozen                 it is stopped by a signal, and does not go on
        │   └── PeerLost                   it has died, left, or no longer answers
        ├── PlanMismatch                   ranks disagree on the plan or its order
        ├── TransferFailed                 a collective failed, usually because a peer died
        │   ├── ServerLost                 a parameter server has ended, or cannot be heard any more
        │   └── TransferInterrupted        Ctrl-C or an exit has ended the wait for other ranks
        ├── TransferTimeout                a collective did not finish in time
        └── WeightsDiffer                  ranks do not hold the same weights (``verify=True``)

A message says what is wrong and what would be right; the command line prints it as one sentence
and exits with code 2 (docs/cli.md lists all codes).
"""

from bytelane.terminal import printable


class BytelaneError(Exception):
    """The root of the tree. Messages escape terminal control characters, also in a traceback."""

    def __str__(self) -> str:
        return printable(super().__str__())


class InputError(BytelaneError, ValueError):
    """An argument or a file of the caller cannot be used."""


class UnitError(InputError):
    """A quantity that cannot be read in the unit that was asked for."""


class JobFileError(InputError):
    """A job file that cannot be read; the message names the file and the field."""


class UnknownPolicy(InputError):
    """No policy of that name."""


class IllegalEvent(BytelaneError):
    """An event that cannot happen in the scheduler's present state; nothing was changed."""


class LabError(BytelaneError):
    """The laboratory cannot be built on this machine, or has broken."""


class LabTimeout(LabError):
    """A command in the laboratory did not end in time."""


class MissingExtra(BytelaneError):
    """An optional package is needed; the message holds the command that installs it."""


class TrainingError(BytelaneError):
    """Something went wrong while ranks train together."""


class NotSupported(TrainingError):
    """A request that is refused because training would go wrong silently."""


class PeerError(TrainingError):
    """Another rank is the reason why this one cannot go on."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message, rank)  # both, so that it can be pickled
        self.rank = rank

    def __str__(self) -> str:
        return printable(str(self.args[0]))


class PeerFailed(PeerError):
    """Another rank raised an exception."""


class PeerFrozen(PeerError):
    """Another rank is stopped by a signal, and does not go on."""


class PeerLost(PeerError):
    """Another rank has died, has left, or no longer answers."""


class OutOfMemory(TrainingError):
    """This rank has no memory for a message; the other ranks are well."""


class PlanMismatch(TrainingError):
    """Ranks disagree on the plan, or on which operation comes next."""


class TransferFailed(TrainingError):
    """A collective operation failed."""


class ServerLost(TransferFailed):
    """A parameter server has ended, or cannot be heard any more; the message names it."""


class TransferInterrupted(TransferFailed):
    """Ctrl-C, or an exit, has ended the wait for the other ranks: their weights are not known."""


class TransferTimeout(TrainingError):
    """A collective operation did not finish in time."""


class WeightsDiffer(TrainingError):
    """Ranks do not hold the same weights."""
