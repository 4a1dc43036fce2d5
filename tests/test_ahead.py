"""What runs before it is needed: its results, its workers, and that nothing of it stays behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from kernelproof import physics, pipeline
from kernelproof.ahead import Ahead
from kernelproof.errors import CandidateCrash
from kernelproof.pipeline import Options, judge
from kernelproof.subject import threads
from kernelproof.worker import Worker

ROOT = Path(__file__).parent
ENDLESS = "import time\nclass Model:\n    pass\nwhile True: time.sleep(0.01)\n"


def running(worker: Worker) -> bool:
    return Path(f"/proc/{worker.pid}").exists()


def gone(worker: Worker) -> bool:
    for _ in range(200):
        if not running(worker):
            return True
        time.sleep(0.02)
    return False


def load(worker: Worker, path: Path) -> None:
    worker.ask(
        "load", timeout=60.0, payload=([], {}, 0, {}), path=str(path), kind="baseline",
        attr="Model", device="cpu", language="pytorch", threads=threads(),
    )  # fmt: skip


def test_without_processors_work_is_done_when_asked_for_and_once() -> None:
    done: list[str] = []
    with Ahead("cpu", False) as ahead:
        wait = ahead.start(lambda: done.append("now") or threading.current_thread())
        assert not done
        assert wait() is threading.main_thread() and wait() is threading.main_thread()
        assert done == ["now"]
        ahead.spares([False, True])
        with ahead.worker("plain") as worker:
            assert worker.name == "plain" and running(worker)


def test_with_processors_it_is_done_beside_and_errors_come_with_the_result() -> None:
    def work() -> None:
        raise CandidateCrash(threading.current_thread().name)

    with Ahead("cpu", True) as ahead:
        wait = ahead.start(work)
        ahead.settle()
        with pytest.raises(CandidateCrash, match="ahead_"):
            wait()


def test_spares_are_given_out_once_by_what_they_have_started() -> None:
    with Ahead("cpu", True) as ahead:
        ahead.spares([False, False, False])
        first, second = ahead.worker("first"), ahead.worker("second", compiles=True)
        assert first.pid != second.pid
        assert (first.name, second.name) == ("first", "second")
        unused = ahead._spares[False][0].worker()
        ahead.settle()
        assert gone(unused) and running(first)
        with ahead.worker("third") as third:
            assert third.pid != unused.pid
        first.close()
        second.close()


def test_what_hangs_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)
    worker = Worker("endless")
    with Ahead("cpu", True) as ahead:
        wait = ahead.start(lambda: load(worker, path))
        ahead.watched(worker)
        ahead.spares([False])
        spare = ahead._spares[False][0].worker()
        began = time.monotonic()
    assert time.monotonic() - began < 30.0
    assert gone(worker) and gone(spare)
    with pytest.raises(CandidateCrash, match="signal 9"):
        wait()
    # What comes too late ends at once.
    late = Worker("late")
    ahead.watched(late)
    assert gone(late)
    late.close()


def test_a_worker_can_be_closed_while_another_thread_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)
    worker = Worker("endless")
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            load(worker, path)
        except CandidateCrash as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    worker.close()
    thread.join(30.0)
    assert not thread.is_alive() and len(raised) == 1
    assert gone(worker) and not worker.alive


def test_requests_of_two_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("import time\ntime.sleep(0.2)\nclass Model:\n    pass\n")
    with Worker("both") as worker:
        thread = threading.Thread(target=lambda: worker.ask("cuda", timeout=60.0, device="cpu"))
        thread.start()
        with pytest.raises(Exception, match="`Model` is not a"):
            load(worker, path)
        thread.join()
        assert worker.alive


@pytest.mark.parametrize("name", ["axpby__c_strides", "mla_kv__tail_skipped.py"])
def test_a_verdict_is_the_same_with_all_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next((ROOT / "candidates").glob(f"*/{name}"))

    def judged() -> tuple[object, ...]:
        options = Options(
            device="cpu", seeds=1, level="quick", seed=5, baselines=("eager",), rounds=6, seconds=1
        )  # fmt: skip
        record = judge(name.split("__")[0], path, timed=True, options=options)
        verdict = record.verdict
        checks = [c.name for c in verdict.checks if "clock" not in c.name]
        return record.status, verdict.message, checks, record.uses_library_kernels is None

    monkeypatch.setattr(physics, "prepare", lambda *_: None)
    plain = judged()

    def beside(options: Options, candidate: object, timed: bool) -> Ahead:
        ahead = Ahead("cpu", True)
        ahead.spares([False, False])
        return ahead

    monkeypatch.setattr(pipeline, "_ahead", beside)
    assert judged() == plain
    assert not [t for t in threading.enumerate() if t.name.startswith("ahead")]
