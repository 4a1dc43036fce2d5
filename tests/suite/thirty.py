"""A suite of 30 candidates of one small problem, each with the verdict that it must get."""

from __future__ import annotations

from pathlib import Path

# A hang must end soon, and an honest kernel get its time on a busy machine.
OPTIONS = {"level": "quick", "call_timeout": 6.0}
PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x + 1


def get_inputs():
    return [torch.randn(32, 48)]
"""
_CANDIDATE = """
import ctypes
import os

import torch

LAST = []


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {}
"""
_RIGHT = (
    "return 2 * x + 1", "return x + x + 1", "return torch.add(1, x, alpha=2)",
    "return torch.addcmul(torch.ones(()), x, torch.full((), 2.0))", "return (x + 0.5) * 2",
    "return 1 - -2 * x", "return x.mul(2).add(1)", "return x.mul(2).add_(1)",
    "return torch.stack([2 * row + 1 for row in x])", "return (2 * x.double() + 1).float()",
    "return torch.lerp(x + 1, 3 * x + 1, 0.5)", "return (2 * x.t() + 1).t().contiguous()",
)  # fmt: skip
_WRONG = (
    "return 2 * x", "return x + 1", "return (2 * x.half() + 1).float()", "return 2 * x + 1.001",
    "return torch.zeros_like(x)", "return (2 * x + 1)[:-1]", "return (2 * x + 1).double()",
    "y = 2 * x + 1; y[-1, -1] = 0; return y",
)  # fmt: skip
_CHEAT = (
    "return (2 * x + 1).as_subclass(type('T', (torch.Tensor,), {}))", "x.mul_(2).add_(1); return x",
    "torch.allclose = lambda *a, **k: True; return 2 * x + 1",
)  # fmt: skip
_CRASH = (
    "raise RuntimeError('no')", "os._exit(3)", "ctypes.string_at(0)", "os.kill(os.getpid(), 9)",
)  # fmt: skip
_TIMEOUT = ("while True: pass",)
_BROKEN = {"syntax": "class ModelNew(", "empty": "import torch\n"}


def write(folder: Path) -> tuple[Path, Path]:
    """The folders of problems and of candidates."""
    problems, candidates = folder / "problems", folder / "candidates"
    problems.mkdir()
    (problems / "twice.py").write_text(PROBLEM)
    (candidates / "twice").mkdir(parents=True)
    for kind, bodies in (("right", _RIGHT), ("wrong", _WRONG), ("cheat", _CHEAT),
                         ("crash", _CRASH), ("timeout", _TIMEOUT)):  # fmt: skip
        for number, body in enumerate(bodies):
            text = _CANDIDATE.format(body)
            (candidates / "twice" / f"{kind}_{number:02d}.py").write_text(text)
    for name, text in _BROKEN.items():
        (candidates / f"twice__{name}.py").write_text(text)
    return problems, candidates


def expected() -> dict[str, str]:
    """Name of an item -> its status."""
    kinds = {"right": "pass", "cheat": "wrong"}
    found = {}
    for kind, bodies in (("right", _RIGHT), ("wrong", _WRONG), ("cheat", _CHEAT),
                         ("crash", _CRASH), ("timeout", _TIMEOUT)):  # fmt: skip
        for number in range(len(bodies)):
            found[f"twice/{kind}_{number:02d}"] = kinds.get(kind, kind)
    # Changing the judge's own functions is another thing than computing something else.
    found["twice/cheat_02"] = "cheat"
    return found | {"twice/syntax": "compile_error", "twice/empty": "wrong"}
