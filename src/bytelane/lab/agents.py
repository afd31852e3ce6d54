"""Start a module of this package on every host of a lab, and collect the reports.

Such a program prints BEGUN when it is at work, one line of JSON when it is done or asked to stop,
and ends when it is stopped.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bytelane.errors import LabError
from bytelane.lab.run import Stream
from bytelane.lab.token import new_token

if TYPE_CHECKING:
    from bytelane.lab.lab import Lab

BEGUN = "begun"
TOKEN = "BYTELANE_LAB_TOKEN"
START_S = 30.0


class Agents:
    """A module of this package, running on every host."""

    def __init__(self, lab: "Lab", module: str, *arguments: str) -> None:
        self._hosts = lab.workers
        self._begun: set[int] = set()
        self._reports: dict[int, str] = {}
        self._last_error = "no answer"
        self._news = threading.Condition()
        command = [sys.executable, "-P", "-m", f"bytelane.lab.{module}", *arguments]
        # In the environment, which other users cannot read, unlike the arguments.
        self._run = lab.start(command, environment={TOKEN: new_token().hex()}, output=self._hear)
        self._await(lambda: len(self._begun) == self._hosts, START_S)

    def finish(self, limit_s: float) -> list[str]:
        """Wait until all are done; return the report of each host."""
        self._await(lambda: len(self._reports) == self._hosts, limit_s)
        return self.stop()

    def stop(self) -> list[str]:
        """Stop all; return the report of each host."""
        self._run.stop()
        if self._run.exit_code or len(self._reports) < self._hosts:
            raise LabError(self._last_error)
        return [self._reports[host] for host in range(self._hosts)]

    def _hear(self, rank: int, stream: Stream, line: str) -> None:
        with self._news:
            if stream == "err":
                self._last_error = line
            elif line == BEGUN:
                self._begun.add(rank)
            else:
                self._reports[rank] = line
            self._news.notify()

    def _await(self, happened: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        with self._news:
            while not happened():
                if self._run.exit_code is not None or time.monotonic() > deadline:
                    break
                self._news.wait(0.1)
            else:
                return
        self._run.stop()
        raise LabError(self._last_error)
