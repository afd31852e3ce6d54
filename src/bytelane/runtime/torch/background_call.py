"""Run in a thread a call that may block in C++ for 30 min, so that the caller can watch peers."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """One call in a thread. A caller that gives up just leaves it running: it holds no lock."""

    def __init__(self, do: Callable[[], Result]) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._do = do
        # A daemon: exit must not wait for a rank that does not come.
        threading.Thread(target=self._run, name="bytelane-background-call", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Tell whether it is over within that time."""
        return self._over.wait(seconds)

    def result(self) -> Result:
        """Return the call's result, or raise its error."""
        assert self._over.is_set()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._do()
        except BaseException as error:
            self._error = error
        self._over.set()
