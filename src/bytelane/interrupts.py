"""Defer Ctrl-C (SIGINT) while LLVM compiles.

LLVM calls back into Python. A KeyboardInterrupt that is raised there is lost, or the compiler does
not survive it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

give_up: Callable[[], None] | None = None
"""Called at Ctrl-C inside the block; None: Ctrl-C has its usual effect after the block. The command
line ends the process, since compiling may take 10 s."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, or call :data:`give_up` at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread gets SIGINT, unless that is ignored
        return
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True
        if give_up is not None:
            give_up()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(signal.SIGINT, None)
