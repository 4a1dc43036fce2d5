"""Files that a candidate has no business to change, and whether it did.

For machines without Landlock, where nothing keeps it from that: a look before and a look after, at
names, sizes and times. It sees the candidate's own sources, this package, torch's Python files of
the first level, and what lies directly in the folders of installed packages; not what lies deeper.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_State = dict[str, tuple[int, int, int]]


class Traces:
    """The state of these files at the time of construction."""

    def __init__(self, sources: Iterable[Path]) -> None:
        self.sources = [path.resolve() for path in sources]
        self.before = self._state()

    def changed(self) -> list[str]:
        """Paths of files that have appeared, gone or changed since."""
        after = self._state()
        names = sorted({*self.before, *after})
        return [name for name in names if self.before.get(name) != after.get(name)]

    def _state(self) -> _State:
        found: _State = {}
        for path in self._watched():
            with contextlib.suppress(OSError):
                stat = path.stat()
                # Of a folder only that it is there: importing puts compiled copies into it.
                known = (0, 0, 0) if path.is_dir() else (stat.st_size, stat.st_mtime_ns, 1)
                found[str(path)] = known
        return found

    def _watched(self) -> Iterator[Path]:
        yield from self.sources
        yield from Path(__file__).parents[1].rglob("*.py")
        torch = importlib.util.find_spec("torch")
        if torch is not None and torch.origin:
            yield from Path(torch.origin).parent.glob("*.py")
        for entry in dict.fromkeys(sys.path):
            folder = Path(entry)
            if folder.name in ("site-packages", "dist-packages") and folder.is_dir():
                yield from (p for p in folder.iterdir() if p.name != "__pycache__")
