"""Files that this process has imported: a new process would read those that have changed since."""

from __future__ import annotations

import os
import sys
import time

_UNKNOWN = (-1, -1)


class Imported:
    """Files of modules, as they were when they were imported."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        self._noted = time.time_ns()

    def note(self) -> None:
        """Look at what has been imported since the last time. What was written since then may have
        been read before that: it counts as changed."""
        last, self._noted = self._noted, time.time_ns()
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if name and name not in self._seen:
                found = _stamp(name)
                self._seen[name] = found if found[0] < last else _UNKNOWN

    def changed(self) -> list[str]:
        """Files that are not what was imported."""
        # Another thread may be noting.
        files = list(self._seen.items())
        return [name for name, seen in files if seen == _UNKNOWN or _stamp(name) != seen]


def _stamp(name: str) -> tuple[int, int]:
    """When and how large the file is; zeros where there is none, as for modules of no file."""
    try:
        found = os.stat(name)  # noqa: PTH116  some thousand files while somebody waits
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
