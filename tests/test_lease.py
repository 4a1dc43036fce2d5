"""The lease of a device: one at a time, in the order of asking, and the dead hold nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from kernelproof import holder, lease

HOLDS = (
    "import time\nfrom kernelproof import lease\n"
    "with lease.hold('{}'):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


def test_in_the_order_of_asking_and_never_two() -> None:
    order: list[int] = []
    inside, most = 0, 0
    told: dict[int, list[str]] = {}
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most
        said = told.setdefault(number, [])
        with lease.hold("fair", lambda words, *_: said.append(words)):
            with lock:
                inside += 1
                most = max(most, inside)
                order.append(number)
            time.sleep(0.02)
            with lock:
                inside -= 1

    threads = []
    with lease.hold("fair"):
        for number in range(5):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            while not told.get(number):
                time.sleep(0.005)
    for thread in threads:
        thread.join(30)
    assert order == list(range(5)) and most == 1
    assert [said[0] for said in told.values()] == [
        f"waiting for fair: {number + 1} before this" for number in range(5)
    ]


def test_a_dead_holder_and_a_dead_waiter_are_passed_over() -> None:
    code = HOLDS.format("mortal")
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    waiter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    folder = lease.home() / "leases" / "mortal"
    while len(list(folder.glob("*.ticket"))) < 2:
        time.sleep(0.02)
    for process in (first, waiter):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with lease.hold("mortal"):
        assert len(list(folder.glob("*.ticket"))) == 1
    assert not list(folder.glob("*.ticket"))


def test_devices_are_apart() -> None:
    with lease.hold("one"), lease.hold("other"):
        assert lease.device_key("cpu") == "cpu"


def test_a_process_is_known_after_its_end() -> None:
    mine = holder.mine()
    assert not holder.gone(mine)
    machine, pid, started = mine.rsplit("|", 2)
    # The same number, given to another process.
    assert holder.gone(f"{machine}|{pid}|{int(started) - 1}")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = f"{machine}|{process.pid}|{holder._started(process.pid)}"
    assert not holder.gone(other)
    process.communicate(b"\n")
    assert holder.gone(other)
    assert not holder.gone(f"another machine|boot|{pid}|1")
