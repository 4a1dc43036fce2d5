"""What a command shows on stderr while it works."""

from __future__ import annotations

import sys
from typing import Any


class Shown:
    """A bar on stderr where that is a terminal, plain lines elsewhere."""

    def __enter__(self) -> Any:
        self.bar: Any = None
        self.last = ""
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
        elif what != self.last:
            print(f"{what} ...", file=sys.stderr, flush=True)
        self.last = what
