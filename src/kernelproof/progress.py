"""What a command shows on stderr while it works."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

# Of cases there are hundreds: in a log, or in what an agent reads, one in so many seconds will do.
_CASE = re.compile(r"(^|: )check (?!what was timed)")
_SECONDS = 2.0


class Shown:
    """A bar on stderr where that is a terminal, plain lines elsewhere: of each stage, but not of
    each of its cases."""

    def __enter__(self) -> Any:
        self.bar: Any = None
        self.last = ""
        self.case_shown = -_SECONDS
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self.task = self.bar.add_task("start", total=1)
            self.bar.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _show(self, what: str, done: int, total: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=what, completed=done, total=max(total, 1))
        elif what != self.last and self._due(what):
            print(f"{what} ...", file=sys.stderr, flush=True)
        self.last = what

    def _due(self, what: str) -> bool:
        if not _CASE.search(what):
            self.case_shown = -_SECONDS
            return True
        now = time.monotonic()
        if now - self.case_shown < _SECONDS:
            return False
        self.case_shown = now
        return True
