"""What the parent sees of a worker's processes from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from kernelproof.worker import processes

BUSY = r"""
import os, sys, time
def burn():
    while time.process_time() < 0.3: pass
if os.fork() == 0:
    os.setsid()
    burn()
    os.write(1, b"burnt\n")  # at once, whatever Python is told of buffers
    time.sleep(60)
ended = os.fork()
if ended == 0:
    burn()
    os._exit(0)
os.waitpid(ended, 0)
os.write(1, b"waited\n")
time.sleep(60)
"""


def test_processor_time_of_all_processes_below() -> None:
    before = processes.processor_seconds(os.getpid())
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([sys.executable, "-c", BUSY], text=True, **pipes) as busy:
        lines = [busy.stdout.readline() for _ in range(2)]
        assert sorted(lines) == ["burnt\n", "waited\n"]
        took = processes.processor_seconds(os.getpid()) - before
        for pid in processes.descendants(busy.pid):
            os.kill(pid, 9)
        busy.kill()
    assert 0.55 < took < 3.0


def test_another_program_in_a_process_is_seen() -> None:
    words = ["/bin/sh", "-c", "echo a; read line; exec sleep 60"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:
        process.stdout.readline()
        before = processes.image(process.pid)
        assert before == processes.image(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while processes.image(process.pid) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert processes.image(process.pid) != before
        process.kill()
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert processes.image(pid) == processes.image(os.getpid())
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert processes.image(pid) == () and processes.scheduling(pid) == ()
