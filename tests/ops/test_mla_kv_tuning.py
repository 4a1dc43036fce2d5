"""Choices that are measured on request and kept on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof import home
from kernelproof.ops.mla_kv import cublaslt, cuda, cuda_library, tuning

FORM = cublaslt.Form(torch.bfloat16, 40, 16, 64, 64, 16, False, 16)
CHOICE = tuning.Choice("mma", {"mma": 2e-6, "library": 3e-6}, ((FORM, (66, 1, 2)),))
CALL = (torch.bfloat16, 4, False, 1e-6, "stacked", (40, 64))


class Gpu:
    """Measures `CHOICE`, and counts how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.measured, self.name, self.capturing = 0, "a GPU", False
        monkeypatch.setenv("KERNELPROOF_HOME", str(folder))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: self.name)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(tuning, "measured", self.measure)
        self.forget()

    def measure(self, *_: Any) -> tuning.Choice:
        self.measured += 1
        tuning._take_algorithms(0, CHOICE)
        return CHOICE

    def forget(self) -> None:
        """As in a new process."""
        tuning._known.clear()
        cuda_library._taken.clear()

    def choice(self, call: tuple[Any, ...] = CALL) -> tuning.Choice | None:
        return tuning.choice(0, call, lambda design: None, None)  # type: ignore[arg-type]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    yield (made := Gpu(monkeypatch, tmp_path))
    made.forget()


def test_a_choice_is_measured_once_and_read_by_the_next_process(gpu: Gpu) -> None:
    assert gpu.choice() == gpu.choice() == CHOICE and gpu.measured == 1
    gpu.forget()
    assert gpu.choice() == CHOICE and gpu.measured == 1
    assert cuda_library._taken == {(FORM, 0): (66, 1, 2)}


def test_another_gpu_call_or_version_is_measured_anew(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.choice()
    gpu.choice((*CALL, "more"))
    assert gpu.measured == 2
    gpu.forget()
    gpu.name = "another GPU"
    gpu.choice()
    assert gpu.measured == 3
    gpu.forget()
    monkeypatch.setattr(tuning, "_versions", lambda: "0.2.0")
    gpu.choice()
    assert gpu.measured == 4 and len(list(tuning.folder().iterdir())) == 4


def test_a_damaged_file_is_measured_anew(gpu: Gpu) -> None:
    gpu.choice()
    (path,) = tuning.folder().iterdir()
    whole = json.loads(path.read_text())
    for text in ("{", json.dumps({**whole, "algorithms": [[["int3"], [1]]]})):
        path.write_text(text)
        gpu.forget()
        assert gpu.choice() == CHOICE
    assert gpu.measured == 3 and json.loads(path.read_text()) == whole


def test_nothing_is_measured_while_a_graph_is_captured(gpu: Gpu) -> None:
    gpu.capturing = True
    assert gpu.choice() is None and gpu.measured == 0 and not tuning.folder().exists()
    gpu.capturing = False
    gpu.choice()
    gpu.forget()
    gpu.capturing = True
    assert gpu.choice() == CHOICE


def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tuning.on
    for value, wanted in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("KERNELPROOF_TUNE", value)
        assert home.tuning_wanted() is wanted
    monkeypatch.setenv("KERNELPROOF_TUNE", "yes")
    with pytest.raises(ValueError, match="KERNELPROOF_TUNE is 'yes'; accepted are 1"):
        home.tuning_wanted()


@pytest.mark.gpu
def test_gpu_tuned_calls_are_right_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "on", True)
    tuning._known.clear()
    torch.manual_seed(0)
    for dtype, near in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        hidden, down = torch.randn(96, 512, device="cuda"), torch.randn(512, 128, device="cuda")
        up = torch.randn(2, 128, 256, device="cuda")
        given = [t.to(dtype) for t in (hidden, down / 512**0.5, *(up / 128**0.5))]
        for _ in range(2):
            out = cuda.project_cuda(*given, kv_heads=4).double()
        x, w, k, v = (t.double() for t in given)
        want = torch.stack(((x @ w @ k), (x @ w @ v)), 1).view_as(out)
        assert (out - want).abs().max() <= near * want.abs().max()
        (found,) = [c for c in tuning._known.values() if c is not None]
        assert found.seconds[found.design] == min(found.seconds.values()) > 0
        assert len(list(tuning.folder().iterdir())) == 1 + (dtype == torch.bfloat16)
        assert found.design in cuda.explain_cuda(*given, kv_heads=4)
        tuning._known.clear()
        cuda_library._taken.clear()
        cuda_library._made.cache_clear()
