"""Which baselines there are, and how each is made."""

from __future__ import annotations

import pytest

from kernelproof import problem
from kernelproof.baselines import Baseline, chosen
from kernelproof.errors import UsageError

COMPILED = "torch.compile (max-autotune)"


def names(name: str, device: str, wanted=None) -> list[str]:
    loaded = problem.load(name)
    return [b.name for b in chosen(loaded, loaded.problem.cases[0], device, wanted)]


def test_on_a_cpu_there_is_no_graph_and_tuning_is_by_name() -> None:
    assert names("linear_gelu", "cpu") == ["eager", "torch.compile", "F.linear"]
    assert names("linear_gelu", "cpu", [COMPILED]) == [COMPILED]
    with pytest.raises(UsageError, match=r"no baseline 'CUDA graph of eager' on a CPU"):
        names("linear_gelu", "cpu", ["CUDA graph of eager"])


def test_precision_is_named_where_float32_matrices_are_multiplied() -> None:
    usual = ["eager", "eager (tf32)", "torch.compile", "CUDA graph of eager"]
    assert names("linear_gelu", "cuda") == [*usual, "F.linear"]
    assert names("linear_gelu", "cuda", [COMPILED]) == [COMPILED]
    plain = [name for name in usual if "tf32" not in name]
    assert names("rms_norm", "cuda") == [*plain, "F.rms_norm"]
    with pytest.raises(UsageError, match=r"no baseline 'eager \(tf32\)' on a GPU"):
        names("rms_norm", "cuda", ["eager (tf32)"])


def test_precision_goes_with_the_name() -> None:
    loaded = problem.load("linear_gelu")
    found = chosen(
        loaded, loaded.problem.cases[0], "cuda", ["torch.compile (tf32)", "eager", COMPILED]
    )
    assert found == [
        Baseline("torch.compile (tf32)", "Model", "compile", True),
        Baseline("eager", "Model", None, False),
        Baseline(COMPILED, "Model", "compile max-autotune", False),
    ]
    plain = problem.load("rms_norm")
    (one,) = chosen(plain, plain.problem.cases[0], "cuda", ["eager"])
    assert one.tf32 is None


def test_those_of_the_problem_are_there() -> None:
    own = problem.load("mla_kv").problem.baselines
    assert own and names("mla_kv", "cpu")[-len(own) :] == list(own)
    loaded = problem.load("mla_kv")
    (one,) = chosen(loaded, loaded.problem.cases[0], "cuda", own[:1])
    assert one == Baseline(own[0], f"BASELINES:{own[0]}", None, False)
