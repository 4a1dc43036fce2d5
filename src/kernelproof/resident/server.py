"""The process: who may ask, one call at a time, when it ends.

The main thread carries calls out; others let commands in. It ends when its session is closed, after
some time without a call, when its folder is gone, when it is told to, and after anything that may
have left it other than a command would start: changed files, another environment, an interrupt.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hmac
import os
import queue
import select
import signal
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from kernelproof import ahead, intruders, openmp, timeline
from kernelproof.errors import KernelproofError
from kernelproof.importing import imports
from kernelproof.resident import launch, place
from kernelproof.resident.imported import Imported
from kernelproof.resident.place import Line
from kernelproof.standby import standby
from kernelproof.worker import processes
from kernelproof.worker.client import start_server

_LOOK = 2.0  # seconds between looks at the folder and the clock
_HELLO_SECONDS = 5.0
_FAULT = 3
# What a call needs before its candidate is built; and after that, for which a thread has the time
# of the build. That imports modules of kernelproof only, which import each other in one direction.
_FIRST = (
    "torch", "kernelproof.session_commands", "kernelproof.session", "kernelproof.session_calls",
    "kernelproof.screen", "kernelproof.findings",
)  # fmt: skip
_BESIDE = (
    "kernelproof.check.matrix", "kernelproof.check.gradients", "kernelproof.check.explain",
    "kernelproof.environment", "kernelproof.reproducer", "kernelproof.report.sessions",
    "kernelproof.timed", "kernelproof.physics", "kernelproof.contestants", "kernelproof.baselines",
    "kernelproof.rivals", "kernelproof.timing.clocks",
)  # fmt: skip
# While no call has come, in the main thread. It is what `torch.autograd.grad` imports.
_IDLE = ("torch.fx.experimental.symbolic_shapes",)


def main(fd: int) -> NoReturn:
    """Be a session's judge; the socket ``fd`` leads to the command that starts it."""
    mine = place.identity()
    # Beside this process's own import of torch.
    start_server(more=True)
    openmp.wait_passively()
    standby.lasting = True
    # Whatever comes of a candidate, also once its supervisor was killed, stays below this process:
    # see `Judge._stranger`.
    processes.adopt_orphans()
    Judge(mine).run(fd)
    _leave()


def _leave() -> NoReturn:
    atexit._run_exitfuncs()
    os._exit(0)


class Judge:
    """Of one session."""

    def __init__(self, mine: dict[str, Any]) -> None:
        self.mine = mine
        self.lock = threading.Lock()
        self.busy = False
        self.over = False
        self.calling = False
        self.idle_since = time.monotonic()
        self.work: queue.SimpleQueue[tuple[Line, dict[str, Any], float]] = queue.SimpleQueue()
        self.files = Imported()
        self.opened = threading.Event()
        self.card: dict[str, Any] = {}
        self.folder = Path()
        self.held = -1
        signal.signal(signal.SIGINT, self._interrupted)

    def run(self, fd: int) -> None:
        """Until it is over. ``fd``: of what leads to who started it."""
        threading.Thread(target=self._opened, args=(fd,), daemon=True).start()
        imports(_FIRST)
        self.opened.wait()
        threading.Thread(target=imports, args=(_BESIDE,), daemon=True).start()
        if self.work.empty():
            # In this thread: a problem may draw numbers while it is imported.
            imports(_IDLE)
            # What does not load is told by the call that wants it.
            with contextlib.suppress(Exception):
                prepare(self.card)
        # What is here stays, and `_tidy` need not look at it.
        gc.freeze()
        self.files.note()
        while not self.over:
            try:
                line, request, came = self.work.get(timeout=_LOOK)
            except queue.Empty:
                self._look()
                continue
            with line.socket:
                self._carry_out(line, request, came)

    # In threads of its own.

    def _opened(self, fd: int) -> None:
        """Hear whose judge this is, and let commands in. ``fd`` leads to who started it."""
        got = launch.received(fd)
        if got is None:
            _leave()
        self.card, listening, self.held = got
        self.folder = place.folder_of(str(self.card["session"]))
        try:
            log = os.open(self.folder / place.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:  # the folder has gone in the meantime
            _leave()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        self.opened.set()
        self._start_cuda()
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _start_cuda(self) -> None:
        """Where a candidate may be for a GPU: its driver needs none of what is being imported."""
        device = self.card.get("device") or "cuda"
        if device != "cpu" and ahead.has_driver():
            threading.Thread(target=ahead.retain_context, args=(device,), daemon=True).start()

    def _let_in(self, connection: socket.socket) -> None:
        """Take the request of a command, or refuse it."""
        line = Line(connection)
        try:
            if self._stranger(connection):
                connection.close()
                return
            connection.settimeout(_HELLO_SECONDS)
            request = line.receive() or {}
            token = str(request.get("token", ""))
            if not hmac.compare_digest(token.encode(), str(self.card["token"]).encode()):
                line.send({"why": "it does not know this command's token"})
                connection.close()
                return
            connection.settimeout(None)
            if not self._taken(line, request):
                connection.close()
        except (OSError, ValueError):
            connection.close()

    def _stranger(self, connection: socket.socket) -> bool:
        """Whether not a command of this user is at the other end; a candidate's process is told on.

        By the time it asks it may have ended: then nobody knows where it came from.
        """
        pid, user = place.peer(connection)
        if pid in processes.descendants(os.getpid()):
            intruders.note("the candidate's process connects to the socket of the judge")
            return True
        return user != os.geteuid() or pid == 0 or not Path(f"/proc/{pid}").exists()

    def _taken(self, line: Line, request: dict[str, Any]) -> bool:
        """Whether the request is now the main thread's; else it has been answered."""
        with self.lock:
            if self.over:
                return False
            if self.busy:
                line.send({"why": "the session's judge is busy with another call", "busy": True})
                return False
            if request.get("do") == "stop":
                self._end("")
                line.send({"stopped": True})
                return False
            why = self._unfit(request)
            if why:
                self._end(why)
                line.send({"why": why})
                return False
            self.busy = True
            line.send({"taken": True})
            self.work.put((line, request, time.monotonic()))
            return True

    def _unfit(self, request: dict[str, Any]) -> str:
        """Why a command would judge otherwise than this process; "" where it would not."""
        other = place.differences(self.mine, dict(request.get("identity") or {}))
        if other:
            return f"it was started with another {', '.join(other)}"
        changed = self.files.changed()
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            return f"{changed[0]}{more}, which it has imported, changed"
        return ""

    # In the main thread.

    def _carry_out(self, line: Line, request: dict[str, Any], came: float) -> None:
        over = threading.Event()
        threading.Thread(target=self._watched, args=(line, over), daemon=True).start()
        closed = interrupted = False
        try:
            self.calling = True
            message, closed = _answered(line, request, came)
            self.calling = False
        except KeyboardInterrupt:
            interrupted = True
        self.calling = False
        over.set()
        with self.lock:
            self.busy, self.idle_since = False, time.monotonic()
            if closed:
                self._end("", forget=True)
            elif interrupted:
                self._end("the last call was interrupted")
        # Now that the next command may come; should it come at once, it waits for the rest.
        if not interrupted:
            with contextlib.suppress(OSError):
                line.send(message)
        self.files.note()
        _tidy()

    def _watched(self, line: Line, over: threading.Event) -> None:
        """Interrupt the call when its command goes, as an interrupt of the command would."""
        poll = select.poll()
        poll.register(line.socket, select.POLLRDHUP)
        while not over.is_set():
            if poll.poll(200):
                if not over.is_set():
                    os.kill(os.getpid(), signal.SIGINT)
                return

    def _interrupted(self, *_: object) -> None:
        if self.calling:
            raise KeyboardInterrupt

    def _look(self) -> None:
        """End where there is nothing more to do."""
        with self.lock:
            if not self.card or self.busy:
                return
            idle = float(self.card["idle"])
            if not (self.folder / place.CARD).is_file():
                self._end("", forget=True)
            elif time.monotonic() - self.idle_since > idle:
                self._end(f"it had no call for {idle:g} s")

    def _end(self, why: str, forget: bool = False) -> None:
        """It is over: nobody is let in any more, and another may take its place at once."""
        self.over = True
        with contextlib.suppress(OSError):
            (self.folder / place.SOCKET).unlink(missing_ok=True)
            if forget:
                (self.folder / place.CARD).unlink(missing_ok=True)
            elif why:
                place.write_card(self.folder, {**self.card, "ended": why})
        os.close(self.held)


def prepare(card: dict[str, Any]) -> None:
    """What else the first call would do: import the problem, look at the GPU."""
    import torch

    from kernelproof import lease, problem
    from kernelproof.worker import probe

    problem.load(card["problem"])
    device = card.get("device") or "cuda"
    if device != "cpu" and torch.cuda.is_available():
        lease.device_key(device)
        probe.without_for_cuda()


def _answered(line: Line, request: dict[str, Any], came: float) -> tuple[dict[str, Any], bool]:
    """The message that ends a call, and whether that has closed the session. ``came``: when the
    request did, by the monotonic clock."""
    from kernelproof import commands, session_commands

    def progress(what: str, done: int, total: int) -> None:
        # Where the command has gone `_watched` knows it, too.
        with contextlib.suppress(OSError):
            line.send({"progress": [what, done, total]})

    intruders.taken()
    with timeline.during(bool(request.get("stages")), came) as stages:
        timeline.mark("wait for the judge")
        try:
            told = session_commands.carried_out(
                request["what"], request["session"], request["candidate"], request["short"],
                request["json"], request["store"], progress,
            )  # fmt: skip
            found = {"text": told.text, "exit": told.exit_code}
            closed = told.closed
        except KernelproofError as error:
            found, closed = {"errors": f"kernelproof: {error}", "exit": error.exit_code}, False
            if request["json"]:
                found["text"] = commands.as_json(error.as_dict())
        except Exception:
            words = "kernelproof: an internal error; please report it with the above"
            found = {"errors": f"{traceback.format_exc()}{words}", "exit": _FAULT}
            closed = False
    return {**found, "stages": stages()}, closed


def _tidy() -> None:
    """Give back what the call has left: other sessions share the machine."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
