"""Do in a thread what may block in C++ for half an hour, so that the caller can watch others."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Errand(Generic[Result]):
    """One call, under way. One that nobody waits for any more is left alone: it holds no lock."""

    def __init__(self, do: Callable[[], Result]) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._do = do
        # A daemon: nobody shall wait at exit for a rank that does not come.
        threading.Thread(target=self._run, name="bytelane-errand", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Tell whether it is over within that time."""
        return self._over.wait(seconds)

    def result(self) -> Result:
        """Return what came of it, or raise that."""
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
