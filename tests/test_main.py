"""The end of the command: as the interpreter's own, and without its last half second."""

from __future__ import annotations

import os
import subprocess
import sys

# What `run` does once the command has said its exit code.
ENDS = """
import atexit, sys, threading
from kernelproof.__main__ import _leave
class Slow:
    def __del__(self): print("taken apart")
kept = Slow()
atexit.register(print, "at exit")
sys.stdout.write("said ")
{}
_leave(SystemExit({}))
"""


def ended(before: str = "", code: str = "3", out: int = subprocess.PIPE) -> tuple[int, str, str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(before, code)], stdout=out, stderr=subprocess.PIPE,
        text=True, check=False, env=env,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_what_was_said_is_there_and_the_modules_stay_whole() -> None:
    assert ended() == (3, "said at exit\n", "")
    assert ended(code="None") == (0, "said at exit\n", "")


def test_threads_that_still_work_are_waited_for() -> None:
    work = "threading.Timer(0.2, print, ['worked']).start()"
    assert ended(work) == (3, "said worked\nat exit\ntaken apart\n", "")


def test_a_reader_that_is_gone_is_told_as_the_interpreter_tells_it() -> None:
    read, write = os.pipe()
    os.close(read)
    code, _, errors = ended(code="0", out=write)
    os.close(write)
    assert code == 120 and "BrokenPipeError" in errors


def test_words_instead_of_a_code_are_the_interpreters_to_print() -> None:
    assert ended(code="'no'") == (1, "said at exit\ntaken apart\n", "no\n")


def test_an_interrupt_while_modules_are_imported_is_a_line() -> None:
    script = (
        "import builtins, sys\n"
        "from kernelproof import __main__ as main\n"
        "plain = builtins.__import__\n"
        "def interrupted(name, *rest, **more):\n"
        "    if name == 'kernelproof.cli': raise KeyboardInterrupt\n"
        "    return plain(name, *rest, **more)\n"
        "builtins.__import__ = interrupted\n"
        "sys.argv = ['kernelproof', 'lint', 'cumsum']\n"
        "main.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "kernelproof: interrupted\n"
