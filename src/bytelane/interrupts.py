"""Keep Ctrl-C out of a compiler at work.

LLVM calls back into Python. A KeyboardInterrupt that is raised there is lost, or the compiler does
not survive it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

give_up: Callable[[], None] | None = None
"""What Ctrl-C does meanwhile; None: it has its usual effect when the work is done. The command line
ends the process, since nobody wants to wait for ten seconds."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, or give up."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread is interrupted, and it may not even be
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
