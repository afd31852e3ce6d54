"""Report training errors: to the other ranks, and to the user with the step of the weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bytelane.errors import TrainingError, TransferFailed
from bytelane.runtime.sync.peers import name_failure
from bytelane.runtime.sync.protocols import KnowsPeers


class Failures:
    """Reports failures. ``where`` says in a sentence which step the weights are of."""

    def __init__(self, peers: KnowsPeers, where: Callable[[], str]) -> None:
        self._peers = peers
        self._where = where

    def tell_all(self, error: TrainingError) -> None:
        """Report an error to the other ranks, and to the user of which step the weights are."""
        self._peers.report_failure(str(error))
        if not hasattr(error, "__notes__"):  # it may be raised again at exit
            error.add_note(self._where())

    @contextmanager
    def told(self) -> Iterator[None]:
        """Report errors raised within."""
        try:
            yield
        except TrainingError as error:
            self.tell_all(error)
            raise

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the rank whose loss makes a transfer fail within.

        A transfer fails before it is known which rank died, so this may wait. Do not nest it: an
        error must not be named twice.
        """
        try:
            yield
        except TransferFailed as error:
            raise name_failure(error, self._peers) from error
