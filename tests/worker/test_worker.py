"""The worker process: what it returns, how it dies, and what the parent never does."""

from __future__ import annotations

import json
import os
import pickle
import socket
import time
from pathlib import Path

import pytest
import torch

from kernelproof.errors import (
    CandidateCrash,
    CandidateTimeout,
    CompileError,
    ContractError,
)
from kernelproof.worker import Worker, wire

CANDIDATE = """
import os, signal, time, torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, kind="twice"):
        super().__init__()
        self.kind = kind
        self.w = nn.Parameter(torch.zeros(2))
    def forward(self, x):
        if self.kind == "raise": raise ValueError("no good")
        if self.kind == "segv": os.kill(os.getpid(), signal.SIGSEGV)
        if self.kind == "exit": os._exit(0)
        if self.kind == "hang":
            while True: time.sleep(1)
        if self.kind == "add": return x.add_(1)
        if self.kind == "half":
            y = torch.empty_like(x); y[:1] = 1; return y
        return x * 2 + self.w.sum()
"""


def loaded(tmp_path: Path, *args: object, source: str = CANDIDATE, state=None) -> Worker:
    path = tmp_path / "candidate.py"
    path.write_text(source)
    worker = Worker("test")
    worker.ask(
        "load", timeout=120, payload=(list(args), {}, 3, state or {}), path=str(path),
        kind="candidate", attr="ModelNew", device="cpu", language="pytorch", threads=1,
    )  # fmt: skip
    return worker


def call(
    worker: Worker, x: torch.Tensor, poison: bool = False, repeats: int = 1, timeout: float = 60
):
    return worker.ask("call", timeout=timeout, payload=([x], 0), poison=poison, repeats=repeats)


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_it_returns_outputs_and_facts(tmp_path: Path) -> None:
    with loaded(tmp_path) as worker:
        x = torch.tensor([1.0, 2.0])
        (run,) = call(worker, x)
        assert torch.equal(run["output"], x * 2)
        assert (run["mutated"], run["views_input"], run["reused"]) == ([], [], [])
        assert run["devices"] == ["cpu"]


def test_it_takes_over_weights(tmp_path: Path) -> None:
    with loaded(tmp_path, state={"w": torch.tensor([1.0, 2.0])}) as worker:
        (run,) = call(worker, torch.zeros(2))
        assert torch.equal(run["output"], torch.full((2,), 3.0))


def test_it_sees_a_changed_input_and_a_view_of_it(tmp_path: Path) -> None:
    with loaded(tmp_path, "add") as worker:
        (run,) = call(worker, torch.zeros(2))
        assert run["mutated"] == [0] and run["views_input"] == [[0, 0]]


def test_new_memory_is_filled_with_nan(tmp_path: Path) -> None:
    with loaded(tmp_path, "half") as worker:
        (run,) = call(worker, torch.zeros(4), poison=True)
        assert run["output"].isnan().tolist() == [False, True, True, True]


def test_an_exception_names_the_users_line(tmp_path: Path) -> None:
    with loaded(tmp_path, "raise") as worker:
        with pytest.raises(CandidateCrash, match="ValueError: no good") as caught:
            call(worker, torch.zeros(2))
        assert "candidate.py:10: in forward" in caught.value.detail
        # The process is still there for the next question.
        with pytest.raises(CandidateCrash, match="no good"):
            call(worker, torch.zeros(2))


def test_a_signal_and_an_exit_are_told_apart(tmp_path: Path) -> None:
    for kind, words in (("segv", "SIGSEGV"), ("exit", "exit status 0")):
        worker = loaded(tmp_path, kind)
        with pytest.raises(CandidateCrash, match=words) as caught:
            call(worker, torch.zeros(2))
        assert not worker.alive and gone(worker.pid)
        if kind == "segv":
            # The line of the candidate's that died, and no frame of the judge's.
            assert 'candidate.py", line' in caught.value.detail
            assert "kernelproof/worker" not in caught.value.detail
            assert "Extension modules" not in caught.value.detail


def test_a_hang_is_killed(tmp_path: Path) -> None:
    worker = loaded(tmp_path, "hang")
    with pytest.raises(CandidateTimeout, match=r"within 0\.5 s"):
        call(worker, torch.zeros(2), timeout=0.5)
    assert gone(worker.pid)


def test_no_model_new_and_a_syntax_error(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no class `ModelNew`; it defines Other"):
        loaded(tmp_path, source="class Other: pass")
    with pytest.raises(CompileError, match=r"candidate.py:2: "):
        loaded(tmp_path, source="x = 1\ndef f(:\n")


def test_what_triton_does_not_compile_is_told_as_such() -> None:
    from kernelproof.worker.describing import described

    kind = type("CompilationError", (Exception,), {"__module__": "triton.compiler.errors"})
    told = described(kind("at 2:4:\ndef f(x):\n    ^\nNameError('y')"), "mine.py")
    assert told["status"] == "compile_error"
    assert told["error"] == "mine.py: Triton does not compile it: NameError('y')"
    assert "at 2:4:" in told["detail"]


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    worker = loaded(tmp_path)
    folder = Path(worker.folder)
    assert folder.is_dir()
    worker.close()
    assert gone(worker.pid) and not folder.exists()


def test_the_parent_never_unpickles() -> None:
    """A worker that sends a pickle is not answered with its execution."""

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, ("/nonexistent/bomb",))

    ours, theirs = socket.socketpair()
    wire.send(theirs, {"answer": {"k": "value", "v": "yes"}}, [pickle.dumps(Bomb())])
    header, buffers = wire.receive(ours, 5)
    assert wire.decode(header["answer"], buffers) == "yes"


FORGER = """
import os, socket, torch
from torch import nn
FRAME = {frame!r}
class ModelNew(nn.Module):
    def forward(self, x):
        for fd in range(3, 64):
            try:
                socket.socket(fileno=os.dup(fd)).sendall(FRAME)
            except OSError:
                continue
        return x
"""


def frame(header: object, *buffers: bytes, sizes: tuple[int, ...] | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    lengths = tuple(map(len, buffers)) if sizes is None else sizes
    packed = b"".join(wire._SIZE.pack(n) for n in lengths)
    return wire._HEAD.pack(len(text), len(lengths)) + packed + text + b"".join(buffers)


def tensor(**fields: object) -> dict[str, object]:
    plain = {"k": "tensor", "type": "torch.Tensor", "shape": [2], "dtype": "float32", "buffer": 0}
    return {"answer": {**plain, **fields}}


NONSENSE = {
    "a number": frame(5),
    "nothing": frame(None),
    "no answer": frame({}),
    "a text": frame("error"),
    "deep JSON": frame(b"[" * 100_000 + b"]" * 100_000),
    "a deep nest": frame(
        b'{"answer":' + b'{"k":"tuple","v":[' * 300 + b"]}" * 300 + b"}"
    ),
    "no such buffer": frame(tensor(buffer=7), bytes(8)),
    "a buffer by name": frame(tensor(buffer={}), bytes(8)),
    "no shape": frame(tensor(shape=None), bytes(8)),
    "a shape that overflows": frame(tensor(shape=[2**62, 2**62, 0]), b""),
    "many axes": frame(tensor(shape=[1] * 500, dtype="uint8"), b"1"),
    "a type without arithmetic": frame(tensor(dtype="qint8"), bytes(2)),
    "a long number": frame({"answer": {"k": "int", "v": "9" * 10_000}}),
    "no list": frame({"answer": {"k": "tuple", "v": 5}}),
    "raw JSON": frame({"answer": {"k": "value", "v": [1]}}),
    "more than there is memory": frame({"answer": None}, sizes=(1 << 50,)),
    "more than can be": frame({"answer": None}, sizes=(1 << 62,)),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_whatever_a_worker_sends_is_no_fault_of_the_judge(tmp_path: Path, name: str) -> None:
    worker = loaded(tmp_path, source=FORGER.format(frame=NONSENSE[name]))
    with pytest.raises(CandidateCrash, match="nonsense in answer to 'call'"):
        call(worker, torch.zeros(2))
    assert not worker.alive


def test_words_of_a_candidate_can_be_printed(tmp_path: Path) -> None:
    source = CANDIDATE.replace("no good", "\\x1b[2J \\ud800 \\u202e")
    with loaded(tmp_path, "raise", source=source) as worker:
        with pytest.raises(CandidateCrash) as caught:
            call(worker, torch.zeros(2))
        told = caught.value
        assert told.message == r"ValueError: \x1b[2J \ud800 \u202e"
        assert told.detail.count("\n") == 1 and all(map(str.isprintable, told.detail.split("\n")))


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4).T,
        torch.randn(2, 3).bfloat16(),
        torch.tensor(5),
        torch.zeros(0, 3),
        torch.randn(4, dtype=torch.complex64),
        torch.tensor([True, False]),
        [1, 2.5, None, "x", (True, float("inf"))],
        {"a": torch.ones(2), "b": [torch.ones(1, dtype=torch.int8)]},
    ],
)
def test_values_cross_the_wire(value) -> None:
    buffers: list = []
    back = wire.decode(wire.encode(value, buffers), [bytearray(b) for b in buffers])

    def same(a, b) -> bool:
        if isinstance(a, torch.Tensor):
            return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        if isinstance(a, (list, tuple)):
            return type(a) is type(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        return a == b

    assert same(value, back)


def test_a_subclass_of_tensor_is_only_named() -> None:
    class Lazy(torch.Tensor):
        pass

    buffers: list = []
    back = wire.decode(wire.encode(torch.ones(2).as_subclass(Lazy), buffers), [])
    assert isinstance(back, wire.Foreign) and back.type_name.endswith("Lazy")


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError):
        wire.decode(
            {"k": "tensor", "shape": [4], "dtype": "float32", "type": "t", "buffer": 0},
            [bytearray(3)],
        )
    with pytest.raises(ValueError):
        wire.decode({"k": "surprise"}, [])
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\xff" * 64)
    with pytest.raises(ValueError):
        wire.receive(ours, 5)
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\0")
    with pytest.raises(TimeoutError):
        wire.receive(ours, 0.05)


def test_a_candidates_folder_does_not_hide_packages(tmp_path: Path) -> None:
    # `cuda` is a namespace package, which any plain module on the path would hide.
    for name in ("numpy", "cuda"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('hidden')")
    (tmp_path / "helper_of_candidate.py").write_text("VALUE = 3")
    source = (
        "import numpy, torch, cuda.bindings\nfrom helper_of_candidate import VALUE\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x): return x + VALUE\n"
    )
    with loaded(tmp_path, source=source) as worker:
        assert torch.equal(call(worker, torch.zeros(2))[0]["output"], torch.full((2,), 3.0))


def test_it_is_seen_who_changes_how_a_worker_is_scheduled(tmp_path: Path) -> None:
    """Any process of the same user may, to slow it while it is timed."""
    with loaded(tmp_path) as worker:
        assert not worker.rescheduled
        os.setpriority(os.PRIO_PROCESS, worker.pid, os.getpriority(os.PRIO_PROCESS, 0) + 1)
        assert worker.rescheduled
    assert not worker.rescheduled  # it has ended
