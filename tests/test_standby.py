"""Workers that are used for one module after another: as new, or not again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof import physics, pipeline
from kernelproof.ahead import Ahead
from kernelproof.pipeline import Options, judge
from kernelproof.standby import Spare, standby
from kernelproof.subject import threads
from kernelproof.worker import Worker

ROOT = Path(__file__).parent
HEAD = "import torch, sys, os, threading, time\n"
PLAIN = """
class Model(torch.nn.Module):
    def forward(self, x):
        return {}
"""
# What a problem could set that would change what is measured of the next one.
LEAVES = {
    "dtype": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "gradients": "torch.set_grad_enabled(False)",
    "a method": "torch.nn.Module.__call__ = lambda self, *a: self.forward(*a)",
    "cuDNN": "torch.backends.cudnn.benchmark = True",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "attention": "torch.backends.cuda.enable_flash_sdp(False)",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "environment": "os.environ['SOME_SETTING'] = '1'",
    "search path": "sys.path.insert(0, '/somewhere')",
    "folder": "os.chdir('/')",
    "denormals": "torch.set_flush_denormal(True)",
    "a thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a function of torch": "torch.nn.functional.silu = torch.sigmoid",
    "torch.compile": "import torch._dynamo",
    "a hook": "torch.nn.modules.module.register_module_forward_hook(lambda *_: None)",
}


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(standby, "lasting", True)
    yield
    standby.end()


def problem(folder: Path, value: str = "x + 1", top: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "problem.py"
    path.write_text(HEAD + top + "\n" + PLAIN.format(value))
    return path


def load(worker: Worker, path: Path, **more: Any) -> None:
    worker.ask(
        "load", timeout=60.0, payload=([], {}, 0, {}), path=str(path), kind="baseline",
        attr="Model", device="cpu", language="pytorch", threads=threads(), **more,
    )  # fmt: skip


def called(worker: Worker) -> torch.Tensor:
    payload = ([torch.zeros(3)], 0)
    (run,) = worker.ask("call", timeout=60.0, payload=payload, poison=False, repeats=1)
    return run["output"]


def test_a_worker_has_one_module_after_another(tmp_path: Path) -> None:
    with Ahead("cpu", True) as ahead:
        ahead.spares([False])
        worker = ahead.worker("one")
        load(worker, problem(tmp_path / "a"), tf32=True)
        assert called(worker).tolist() == [1.0] * 3
        ahead.done(worker)
    with Ahead("cpu", True) as ahead:
        ahead.spares([False, False])
        again, new = ahead.worker("two"), ahead.worker("three")
        assert (again.pid, again.name, again.again) == (worker.pid, "two", True)
        assert new.pid != worker.pid and not new.again
        # Its helper is the one beside it, not the one of the same name that the first had.
        load(again, problem(tmp_path / "b", "x + 2"))
        assert called(again).tolist() == [2.0] * 3
        ahead.done(again)
        ahead.done(new)


def test_modules_beside_a_problem_are_its_own(tmp_path: Path) -> None:
    with Ahead("cpu", True) as ahead:
        worker = ahead.worker("one")
        for number in (1, 2):
            path = problem(tmp_path / str(number), "helper.add(x)", "import helper")
            (path.parent / "helper.py").write_text(f"def add(x): return x + {number}\n")
            load(worker, path)
            assert called(worker).tolist() == [number] * 3
            assert worker.ask("clear", timeout=10.0) == []
        worker.close()


@pytest.mark.parametrize("what", LEAVES)
def test_what_a_problem_leaves_behind_ends_its_worker(what: str, tmp_path: Path) -> None:
    worker = Worker("leaves")
    load(worker, problem(tmp_path, top=LEAVES[what]))
    standby.give_back(worker, "cpu")
    assert not worker.alive
    assert standby.take("cpu", False) is None


@pytest.mark.parametrize("how", ["ends", "slowed"])
def test_what_was_done_to_a_waiting_worker_is_seen_when_it_is_taken(how: str) -> None:
    worker = Worker("waits")
    standby.give(Spare.of(worker, "cpu"))
    other = Worker("other")
    standby.give(Spare.of(other, "cpu"))
    if how == "ends":
        os.kill(worker.pid, signal.SIGKILL)
    else:
        os.setpriority(os.PRIO_PROCESS, worker.pid, 5)
    found = standby.take("cpu", False)
    assert found is not None
    if how == "ends":
        # Nobody has told of its end yet; its first request does.
        assert found.worker() in (worker, other)
    else:
        assert found.worker() is other and not worker.alive
    found.end()


def test_they_are_given_by_device_and_by_what_they_have_started() -> None:
    standby.give(Spare.of(Worker("here"), "cpu"))
    assert standby.take("cuda:1", False) is None
    assert standby.take("cpu", True) is None
    found = standby.take("cpu", False)
    assert found is not None
    found.end()


def test_one_that_has_compiled_ends_and_so_do_all_where_none_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Ahead("cpu", True) as ahead:
        compiled, plain = Worker("compiled"), Worker("plain")
        ahead.done(compiled, compiles=True)
        assert not compiled.alive
        monkeypatch.setattr(standby, "lasting", False)
        ahead.done(plain)
        assert not plain.alive
    assert standby.take("cpu", False) is None


def test_what_fails_in_a_used_worker_is_tried_in_a_new_one(tmp_path: Path) -> None:
    """Whatever was left there, unseen, is not the fault of what comes next."""
    from kernelproof.timed_worker import TimedModule
    from kernelproof.timing import Fresh

    once = "sys.modules.setdefault('json', None)\nimport json\n"
    first = "sys.argv.append('left')\n"
    second = "if 'left' in sys.argv: raise RuntimeError('twice')\n"
    worker = Worker("used")
    load(worker, problem(tmp_path / "a", top=once + first))
    standby.give_back(worker, "cpu")
    spare = standby.take("cpu", False)
    assert spare is not None and spare.worker() is worker
    fresh = Fresh(lambda seed: [torch.ones(4)], lambda x: 16, 0, False, lambda x: b"")
    made = TimedModule(
        "eager", str(problem(tmp_path / "b", top=second)), "Model", "cpu", ([], {}, 0, {}), fresh,
        Options(), worker=lambda name, compiles: worker,
    )  # fmt: skip
    made._loaded()
    assert made.worker is not worker and not worker.alive
    made.worker.close()


def test_judgements_with_workers_that_are_used_again_tell_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker after another problem, and after itself."""
    monkeypatch.setattr(physics, "prepare", lambda *_: None)
    started: list[int] = []

    def beside(options: Options, candidate: object, timed: bool) -> Ahead:
        ahead = Ahead("cpu", True)
        ahead.spares([False, False])
        started.extend(s.worker().pid for kind in ahead._spares.values() for s in kind)
        return ahead

    def judged(name: str) -> tuple[object, ...]:
        path = next((ROOT / "candidates").glob(f"*/{name}"))
        options = Options(
            device="cpu", seeds=1, level="quick", seed=5, baselines=("eager",), rounds=6, seconds=1
        )  # fmt: skip
        record = judge(name.split("__")[0], path, timed=True, options=options)
        checks = [c.name for c in record.verdict.checks if "clock" not in c.name]
        beside = len(record.timing.baselines) if record.timing is not None else 0
        return record.status, record.verdict.message, checks, beside

    names = ("axpby__select.py", "cumsum__doubling.py", "axpby__select.py")
    monkeypatch.setattr(standby, "lasting", False)
    plain = [judged(name) for name in names]
    assert [row[0] for row in plain] == ["pass"] * 3
    monkeypatch.setattr(standby, "lasting", True)
    monkeypatch.setattr(pipeline, "_ahead", beside)
    assert [judged(name) for name in names] == plain
    assert len(started) == 6 and len(set(started)) == 2
