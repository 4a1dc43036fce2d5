"""Landlock: Linux's way for an unprivileged process to give up access to files, TCP and signals.

Plain system calls through ctypes (linux/landlock.h, Documentation/userspace-api/landlock.rst).
Everything that a ruleset handles is denied unless a rule allows it; a process and all that it
starts can never get the access back. A process under it can also not attach to, or read the
memory of, a process outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

# The numbers are the same on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_VERSION = (1 << 13) - 1
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP = 3  # bind and connect
_SCOPES = 3  # abstract Unix sockets and signals stay within

LIST = _READ_DIR
READ = _EXECUTE | _READ_FILE | _READ_DIR
DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
WRITE = _FIRST_VERSION | _REFER | _TRUNCATE


def version() -> int:
    """The kernel's Landlock ABI: 1 files, 3 truncation, 4 TCP, 5 devices, 6 signals. 0: none."""
    return max(0, _call(_CREATE, None, 0, _VERSION))


class Ruleset:
    """What a process may still do; `restrict` makes it so."""

    def __init__(self) -> None:
        """Raises OSError where the kernel has no Landlock."""
        self.version = version()
        self.handled = _FIRST_VERSION
        for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
            self.handled |= right if self.version >= since else 0
        self.tcp = self.version >= 4
        self.signals = self.version >= 6
        fields = [self.handled]
        fields += [_TCP] if self.tcp else []
        fields += [_SCOPES] if self.signals else []
        attributes = struct.pack(f"={len(fields)}Q", *fields)
        self._fd = _checked(_call(_CREATE, attributes, len(attributes), 0))

    def allow(self, path: str | Path, rights: int) -> None:
        """Allow ``rights`` on ``path`` and all below it. A path that is not there, or that is a
        symbolic link, gives nothing."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                mode = os.fstat(fd).st_mode
                if stat.S_ISLNK(mode):
                    return
                given = rights & self.handled
                given &= self.handled if stat.S_ISDIR(mode) else _FILE_RIGHTS
                if given:
                    rule = struct.pack("=Qi", given, fd)
                    _checked(_call(_ADD, self._fd, _PATH_BENEATH, rule, 0))
            finally:
                os.close(fd)

    def allow_except(self, path: Path, rights: int, hidden: Iterable[Path]) -> None:
        """As `allow`, without the files and folders ``hidden``. Folders above them can be listed,
        and what is put into these later is not allowed: rules can only give."""
        inside = [h for h in hidden if h == path or path in h.parents]
        if not inside:
            self.allow(path, rights)
        elif path not in inside:
            self.allow(path, LIST)
            with contextlib.suppress(OSError):
                for child in path.iterdir():
                    self.allow_except(child, rights, inside)

    def restrict(self) -> None:
        """Put the ruleset on this thread and all that it starts. Raises OSError."""
        no_new_privileges()
        _checked(_call(_RESTRICT, self._fd, 0))
        os.close(self._fd)


def no_new_privileges() -> None:
    """From now on no program gains rights by being started (setuid has no effect)."""
    _checked(_libc().prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    libc = _libc()
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(libc.syscall(ctypes.c_long(number), *given))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
