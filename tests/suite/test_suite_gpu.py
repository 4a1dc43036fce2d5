"""Several items on one GPU, for real: outputs of hundreds of megabytes, and memory that does not
suffice for two at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof.suite import local, runs
from kernelproof.types import SuiteResult

pytestmark = pytest.mark.gpu

_PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        {body}
        return 2 * x


def get_inputs():
    return [torch.rand({rows}, 4096)]
"""
# Six tenths of the memory that is free, for a moment: two at a time do not fit, and their sizes do
# not tell.
_HOG = "torch.empty({}, dtype=torch.uint8, device='cuda')"
_NEW = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {}\n"
_TURNED = "y = 2 * x; y[-1, -1] = 0; return y"


def judged(folder: Path, problems: dict[str, tuple[int, str]]) -> list[SuiteResult]:
    """Two right and one wrong candidate of each problem (rows, body), three at a time."""
    there, candidates = folder / "problems", folder / "candidates"
    there.mkdir()
    candidates.mkdir()
    for name, (rows, body) in problems.items():
        (there / f"{name}.py").write_text(_PROBLEM.format(rows=rows, body=body or "pass"))
        for number in range(2):
            text = _NEW.format(f"{body or 'pass'}\n        return x + x")
            (candidates / f"{name}__right_{number}.py").write_text(text)
        (candidates / f"{name}__wrong.py").write_text(_NEW.format(_TURNED))
    state = runs.start(
        there, candidates, timed=False, options={"level": "quick", "seeds": 1},
        means=runs.Means(lanes=3, gpus="0", limit=120.0), store=f"sqlite:///{folder / 's'}",
    )  # fmt: skip
    found = {result.item: result.status for result in state.results}
    assert found == {
        f"{name}/{kind}": "wrong" if kind == "wrong" else "pass"
        for name in problems for kind in ("right_0", "right_1", "wrong")
    }, [(result.item, result.message) for result in state.results]  # fmt: skip
    return list(state.results)


def test_several_on_one_gpu(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path / "home"))
    found = judged(tmp_path, {"small": (16, ""), "large": (20_000, "")})
    assert len({result.place for result in found}) > 1


def test_two_that_do_not_fit_together_are_judged_alone(tmp_path: Path, monkeypatch) -> None:
    import torch

    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path / "home"))
    # What others hold is not waited for: it is left out of what is taken.
    monkeypatch.setattr(local, "PATIENCE", 1.0)
    free = torch.cuda.mem_get_info()[0]
    found = judged(tmp_path, {"hog": (16, _HOG.format(int(0.6 * free)))})
    assert max(result.attempts for result in found) == 1
