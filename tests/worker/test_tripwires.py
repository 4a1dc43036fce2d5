"""What code did to its process; the hook of each test stays for the rest of the run."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelproof.importing import import_file
from kernelproof.worker import copying, sampling
from kernelproof.worker.tripwires import Tripwires


def test_nothing_happened(tmp_path: Path) -> None:
    wires = Tripwires(str(tmp_path))
    gc.get_objects()
    assert wires.report() == {"patched": [], "seen": [], "opened": [], "threads": 0}


def test_replaced_functions_are_named(tmp_path: Path, monkeypatch) -> None:
    wires = Tripwires(str(tmp_path))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "__eq__", lambda a, b: True)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda a, b: 0.0)
    monkeypatch.setattr(sampling, "Sampler", object)
    patched = wires.report()["patched"]
    assert [n for n in patched if not n.startswith("kernelproof.") and "__code__" not in n] == [
        "time.perf_counter_ns",
        "torch.Tensor.__eq__",
        "torch.cuda.Event.elapsed_time",
    ]
    assert "kernelproof.worker.sampling.Sampler" in patched


def test_replaced_code_is_named(tmp_path: Path, monkeypatch) -> None:
    wires = Tripwires(str(tmp_path))

    def other(value):
        return 0

    monkeypatch.setattr(sampling._emptied, "__code__", other.__code__)
    assert wires.report()["patched"] == ["kernelproof.worker.sampling._emptied.__code__"]


def test_looks_around_are_those_of_the_candidates_own_code(tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(
        "import gc, sys, pathlib\n"
        "def look():\n"
        "    gc.get_objects()\n"
        "    sys._getframe()\n"
        "    pathlib.Path('/proc/self/maps').read_text()\n"
        "    pathlib.Path(__file__).read_text()\n"
    )
    wires = Tripwires(str(tmp_path))
    import_file(path, "candidate").look()
    report = wires.report()
    assert [text.split(" ", 1)[0] for text in report["seen"]] == [
        "candidate.py:3", "candidate.py:4", "candidate.py:5",
    ]  # fmt: skip
    assert report["opened"] == ["/proc/self/maps"]


def test_what_stands_between_functions_and_their_callers_is_named(tmp_path: Path) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    wires = Tripwires(str(tmp_path))
    with Mode():
        wires.look()
    kept = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        wires.look()
    finally:
        sys.setprofile(kept)
    # Gone by now, and named all the same.
    patched = wires.report()["patched"]
    assert [name.split(" ")[0] for name in patched] == ["torch's", "sys.setprofile"]


def test_a_default_device_is_no_secret(tmp_path: Path) -> None:
    wires = Tripwires(str(tmp_path))
    with torch.device("cpu"):
        wires.look()
    assert wires.report()["patched"] == []


def test_what_modules_of_the_judge_call_by_names_of_their_own_is_kept(
    tmp_path: Path, monkeypatch
) -> None:
    wires = Tripwires(str(tmp_path))
    monkeypatch.setattr(copying, "_copyto", lambda *_: None)
    monkeypatch.setattr(sampling, "pickle", sys)
    monkeypatch.setitem(sys.modules, "numpy", sys)
    patched = wires.report()["patched"]
    assert patched == [
        "sys.modules['numpy']", "kernelproof.worker.copying._copyto",
        "kernelproof.worker.sampling.pickle",
    ]  # fmt: skip


def test_an_object_of_the_judge_has_what_it_had(tmp_path: Path) -> None:
    class Odd(dict):
        pass

    class Sampler:
        def __init__(self) -> None:
            self.clock, self.kept, self.seconds = time.time, {}, 0.0

    wires, one = Tripwires(str(tmp_path)), Sampler()
    wires.keep(one)
    one.kept["host"], one.seconds = [1], 2.0
    wires.look()
    assert wires.report()["patched"] == []
    one.clock, one.kept = time.monotonic, Odd()
    wires.look()
    one.clock, one.kept = time.time, {}
    assert wires.report()["patched"] == ["Sampler.clock", "Sampler.kept"]
