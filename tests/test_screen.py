"""Remarks on sources."""

from __future__ import annotations

import pytest

from kernelproof.screen import native, python


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys\nsys._getframe(1)", "reads the frames"),
        ("import time\ntime.perf_counter = f", "replaces time.perf_counter"),
        ("import torch\nsetattr(torch.cuda, 'synchronize', f)", "replaces something of torch.cuda"),
        ("f.__code__ = g.__code__", "replaces the code"),
        ("exec(text)", "runs text as code"),
        ("from kernelproof.worker import sampling", "imports what judges it"),
        ("from kernelproof import problem", "imports what judges it"),
        ("class ModelNew(Model): pass", "inherits from the reference"),
        ("try:\n    f()\nexcept:\n    g()", "takes another way"),
    ],
)
def test_what_cheats_use_is_remarked(source: str, words: str) -> None:
    found = list(python(source))
    assert len(found) == 1 and words in found[0][1]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True",
        "from kernelproof.cuda import Kernel\nfrom kernelproof.build import c_library",
        "class M:\n    def __init__(self):\n        self.time = 3",
        "# sys._getframe(1)\ntext = 'exec(x)'",
        "def broken(:",
    ],
)
def test_what_honest_kernels_use_is_not(source: str) -> None:
    assert list(python(source)) == []


def test_native_sources_are_read_without_their_comments() -> None:
    text = "// ptrace(\n/* cudaStreamCreate\n */ int x;\ncudaStreamCreateWithFlags(&s, 1);\n"
    assert list(native(text)) == [(4, "uses a stream of its own (cudaStreamCreateWithFlags)")]
