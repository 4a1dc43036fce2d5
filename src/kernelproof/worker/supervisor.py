"""The process between the server and one worker: it watches, and it cleans up.

It keeps what the worker prints (the beginning and the end, whatever the amount), looks at the
memory and the number of processes, and when the worker has ended, or shall end, kills all that came
of it, removes its folder and reports. It runs no candidate code.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from kernelproof.worker import processes, wire
from kernelproof.worker.limits import Confinement

_PERIOD = 0.1  # seconds between looks at the worker's memory
# A look at all processes reads all of /proc: at most every so often, and a small part of the time.
_SCAN_PERIOD = 0.25
_SCAN_SHARE = 50
_HEAD, _TAIL = 50_000, 150_000  # bytes kept of what the worker prints
_CHUNK = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python has only since 3.10 and not everywhere
_END_SECONDS = 30.0  # a process inside a driver may take long to die


def main(sock: int, channel: int, confinement: dict[str, Any] | None) -> NoReturn:
    """Start a worker on the socket ``sock`` and watch over it; ``channel`` leads to the parent."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        processes.adopt_orphans()
        limits = None if confinement is None else Confinement(**confinement)
        _Supervisor(sock, socket.socket(fileno=channel), limits).run()
        status = 0
    except wire.Closed:
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


class _Supervisor:
    def __init__(self, sock: int, channel: socket.socket, limits: Confinement | None) -> None:
        self.channel = channel
        self.limits = limits
        self.folder = Path(tempfile.mkdtemp(prefix="kernelproof-"))
        self.output, write_end = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, _SET_PIPE_SIZE, _CHUNK)
        os.set_blocking(self.output, False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            channel.close()
            os.close(self.output)
            _worker(parent, sock, write_end, limits, self.folder)
        os.close(sock)
        os.close(write_end)
        self.kept = _Kept()
        self.watch = None if limits is None else _Watch(self.pid, limits)

    def run(self) -> None:
        reason = ""
        try:
            with contextlib.suppress(wire.Closed):
                wire.send(self.channel, {"pid": self.pid, "folder": str(self.folder)})
                reason = self._until_the_end()
        finally:
            statuses, left = processes.end_all(self.pid, _END_SECONDS)
            self._read_output()
            shutil.rmtree(self.folder, ignore_errors=True)
        status = statuses.get(self.pid)
        report = {
            "exit": None if status is None else os.waitstatus_to_exitcode(status),
            "reason": reason,
            "left": left,
            "others": len(statuses) - 1,
            "log": self.kept.text(),
        }
        wire.send(self.channel, report)

    def _until_the_end(self) -> str:
        """Returns why the worker must end, "" where it has ended or the parent wants it to."""
        ended = processes.watch_fd(self.pid)
        poll = select.poll()
        for fd in (self.output, self.channel.fileno(), *([] if ended is None else [ended])):
            poll.register(fd, select.POLLIN)
        while not processes.ended(self.pid):
            ready = {fd for fd, _ in poll.poll(_PERIOD * 1000)}
            if self.output in ready and not self._read_output():
                # Closed by the worker and all it has started; it may still go on without.
                poll.unregister(self.output)
            if self.channel.fileno() in ready:
                request, _ = wire.receive(self.channel)
                self._await_end(float(request["grace"]))
                return ""
            reason = self.watch.look() if self.watch is not None else ""
            if reason:
                return reason
        return ""

    def _await_end(self, seconds: float) -> None:
        """The worker may be on its way out: let it, so that its own status is seen."""
        deadline = time.monotonic() + seconds
        while not processes.ended(self.pid) and time.monotonic() < deadline:
            self._read_output()
            time.sleep(0.005)

    def _read_output(self) -> bool:
        """Take what is there. False at the end."""
        with contextlib.suppress(BlockingIOError):
            # Not until it is empty: a worker that floods must not keep us from looking at it.
            for _ in range(8):
                data = os.read(self.output, _CHUNK)
                if not data:
                    return False
                self.kept.add(data)
        return True


class _Kept:
    """The beginning and the end of what was printed."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = _HEAD - len(self.head)
        self.head += data[:room]
        self.tail += data[max(0, room) :]
        del self.tail[:-_TAIL]

    def text(self) -> str:
        left_out = self.total - len(self.head) - len(self.tail)
        between = f"\n... {left_out} bytes left out ...\n" if left_out else ""
        head, tail = self.head.decode(errors="replace"), self.tail.decode(errors="replace")
        return head + between + tail


class _Watch:
    """Memory and number of processes of a worker and its descendants."""

    def __init__(self, pid: int, limits: Confinement) -> None:
        self.pid = pid
        self.limits = limits
        # What a fork of the server has from the start; each further fork has it, too, at no cost.
        self.base = processes.held_bytes(os.getpid())
        self.next_scan = 0.0
        self.others: dict[int, str] = {}

    def look(self) -> str:
        """A limit that is exceeded, in words; "" where none is."""
        started = time.monotonic()
        if started >= self.next_scan:
            self.others = processes.descendants(os.getpid())
            self.others.pop(self.pid, None)
            took = time.monotonic() - started
            self.next_scan = started + max(_SCAN_PERIOD, _SCAN_SHARE * took)
        if len(self.others) > self.limits.processes:
            return (
                f"it had started {len(self.others)} processes, and {self.limits.processes} are "
                "allowed"
            )
        held = sum(
            max(0, processes.held_bytes(pid) - self.base) for pid in (self.pid, *self.others)
        )
        if held > self.limits.memory:
            return f"it held {held / 1e9:.1f} GB, and {self.limits.memory / 1e9:.1f} GB are allowed"
        return ""


def _worker(
    parent: int, sock: int, output: int, limits: Confinement | None, folder: Path
) -> NoReturn:
    try:
        os.setsid()
        processes.end_with_parent(parent)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        with contextlib.suppress(OSError):
            # Where memory runs out, the kernel takes this process and not the judge.
            Path("/proc/self/oom_score_adj").write_text("1000")
        faulthandler.enable(file=2)
        channel = socket.socket(fileno=sock)
        protections = [] if limits is None else limits.apply(folder)
        wire.send(channel, {"protections": protections})
        from kernelproof.worker.child import serve

        serve(channel)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)
