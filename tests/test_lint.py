"""Problems with planted weaknesses, each found; honest ones come out clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelproof import problem
from kernelproof.lint import Report, examine, render
from kernelproof.types import Progress, silent

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
SOUND = "return torch.softmax(3 * x, dim=-1) @ z"
DRAWS = "[torch.randn(6, 16), torch.randn(16, 5)]"


def write(
    tmp_path: Path, forward: str, inputs: str, names: str = "x", init: str = "pass", more: str = ""
) -> Path:
    path = tmp_path / "planted.py"
    path.write_text(
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n    def forward(self, {names}):\n        {forward}\n"
        f"def get_inputs():\n    return {inputs}\n{more}\n"
    )
    return path


def linted(path: Path | str, progress: Progress = silent, **kwargs) -> Report:
    return examine(problem.load(path), seed=3, progress=progress, **kwargs)


def errors(report: Report) -> dict[str, set[str]]:
    """Code -> subjects of the findings of level error."""
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        if finding.level == "error":
            found.setdefault(finding.code, set()).add(finding.subject)
    return found


def finding(report: Report, code: str):
    (one,) = [f for f in report.findings if f.code == code]
    return one


def cheat(report: Report, name: str):
    (one,) = [c for c in report.cheats if c.name == name]
    return one


def test_a_sound_problem_is_clean(tmp_path: Path) -> None:
    report = linted(write(tmp_path, SOUND, DRAWS, "x, z"))
    assert report.clean and not report.findings
    kinds = {c.kind for c in report.cheats}
    assert kinds == {"output", "half", "input", "precision"}
    assert not any(c.accepted or c.proof for c in report.cheats)
    assert cheat(report, "zeros").cases == ("default",) and cheat(report, "zeros").ratio > 1000
    assert {c.name for c in report.cheats if c.kind == "precision"} == {
        "computed in tf32", "computed in bf16", "computed in fp16",
    }  # fmt: skip


def test_relu_of_positive_inputs_is_an_identity(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return F.relu(x)", "[torch.rand(6, 16)]"))
    assert errors(report) == {"identity": {"output"}}
    assert "use torch.randn" in finding(report, "identity").remedy
    assert finding(report, "one-sided-input").subject == "x"
    fixed = linted(write(tmp_path, "return F.relu(x)", "[torch.randn(6, 16)]"))
    assert fixed.clean and not fixed.findings


def test_small_outputs_let_zeros_pass_allclose(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return x * 1e-5", "[torch.randn(6, 16)]"))
    assert report.clean, "the proof is not fooled"
    assert "zeros pass allclose" in finding(report, "small-output").message
    assert "scale the inputs" in finding(report, "small-output").remedy
    zeros = cheat(report, "zeros")
    assert zeros.compat_accepted and not zeros.accepted
    fooled = [f for f in report.findings if f.code == "compat-accepts"]
    assert [f.level for f in fooled] == ["warning", "note"]
    assert "zeros (output)" in fooled[0].message and "in tf32" not in fooled[0].message


def test_small_outputs_are_judged_by_the_problems_own_tolerance(tmp_path: Path) -> None:
    more = 'TOLERANCE = {"atol": 1e-9, "rtol": 1e-4}'
    report = linted(write(tmp_path, "return x * 1e-5", "[torch.randn(6, 16)]", more=more))
    assert not report.findings


@pytest.mark.parametrize("forward", ["return x * 2.5", "return x * 2.5 + 0 * u.sum()"])
def test_an_input_without_effect_is_found(tmp_path: Path, forward: str) -> None:
    report = linted(write(tmp_path, forward, "[torch.randn(6, 16), torch.randn(3)]", "x, u"))
    found = errors(report)
    assert found["input-without-effect"] == {"u"}
    assert "as zeros or ones or another draw passes" in finding(
        report, "input-without-effect"
    ).message  # fmt: skip
    assert cheat(report, "input u taken as another draw").identical == ("default",)


def test_an_input_that_holds_zeros_hides_a_kernel_without_it(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return x * 2 + b", "[torch.randn(6, 4), torch.zeros(4)]",
                          "x, b"))  # fmt: skip
    assert errors(report)["input-ignored"] == {"b"}
    assert finding(report, "constant-input").subject == "b"


def test_parameters_at_their_defaults_hide_kernels_without_them(tmp_path: Path) -> None:
    report = linted(
        write(
            tmp_path, "return self.n(x)", "[torch.randn(6, 16)]", init="self.n = nn.LayerNorm(16)"
        )
    )
    assert errors(report) == {"parameter-ignored": {"n.weight", "n.bias"}}
    assert cheat(report, "parameter n.weight taken as ones").accepted
    assert not cheat(report, "parameter n.weight taken as zeros").accepted
    init = "self.n = nn.LayerNorm(16); nn.init.normal_(self.n.weight); nn.init.normal_(self.n.bias)"
    assert linted(write(tmp_path, "return self.n(x)", "[torch.randn(6, 16)]", init=init)).clean


def test_a_parameter_that_is_not_used_and_a_counter(tmp_path: Path) -> None:
    init = "self.lost = nn.Parameter(torch.randn(3)); self.bn = nn.BatchNorm1d(16)"
    report = linted(write(tmp_path, "return self.bn(x)", "[torch.randn(6, 16)]", init=init))
    lost = finding(report, "parameter-without-effect")
    assert (lost.subject, lost.level) == ("lost", "warning")
    assert errors(report)["parameter-ignored"] == {
        f"bn.{name}" for name in ("weight", "bias", "running_mean", "running_var")
    }
    assert not any("num_batches_tracked" in c.subject for c in report.cheats)


def test_a_default_that_only_a_constant_leaves_alone(tmp_path: Path) -> None:
    """Normalisation undoes a constant shift, so that a bias of ones is as good as zeros."""
    init = "self.b = nn.Parameter(torch.zeros(16))"
    forward = "return F.layer_norm(3 * x + self.b, [16])"
    report = linted(write(tmp_path, forward, "[torch.randn(6, 16)]", init=init))
    assert errors(report) == {"parameter-ignored": {"b"}}
    assert cheat(report, "parameter b taken as ones").accepted
    assert not cheat(report, "parameter b taken as noise").accepted


def test_a_softmax_over_one_element_is_constant(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return torch.softmax(x, dim=1)", "[torch.randn(64, 1)]"))
    assert "ones" in finding(report, "constant-output").message
    assert finding(report, "constant-output").level == "error"
    assert errors(report)["input-without-effect"] == {"x"}


def test_an_output_of_zeros(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return F.relu(x - 100)", "[torch.randn(6, 16)]"))
    assert errors(report)["zero-output"] == {"output"}


def test_random_numbers_in_forward(tmp_path: Path) -> None:
    report = linted(
        write(tmp_path, "return x * (torch.rand(x.shape) > 0.3)", "[torch.randn(6, 16)]")
    )
    assert errors(report) == {"random": {"reference"}}
    assert "get_inputs" in finding(report, "random").remedy


def test_a_reference_that_remembers_calls(tmp_path: Path) -> None:
    path = write(tmp_path, "self.n += 1; return x * self.n", "[torch.randn(6, 16)]",
                 init="self.n = 0")  # fmt: skip
    assert errors(linted(path))["unsteady"] == {"reference"}


def test_a_reference_that_changes_its_input_is_a_note(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return x.mul_(2.5)", "[torch.randn(6, 16)]"))
    note = finding(report, "mutates-input")
    assert (note.level, note.subject) == ("note", "x") and report.clean


def test_outputs_that_are_no_numbers(tmp_path: Path) -> None:
    some = linted(write(tmp_path, "return x.log()", "[torch.randn(6, 16)]"))
    assert finding(some, "non-finite").level == "warning"
    every = linted(write(tmp_path, "return x / 0", "[torch.randn(6, 16)]"))
    assert finding(every, "non-finite").level == "error"


def test_inputs_that_no_seed_changes(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return x * 2.5", "[fixed]",
                          more="fixed = torch.randn(6, 16)"))  # fmt: skip
    assert errors(report)["forged-output"] == {"output"}
    assert "output of another run" in finding(report, "forged-output").message
    assert "inside get_inputs" in finding(report, "forged-output").remedy
    assert finding(report, "same-input").subject == "x"


def test_half_of_the_work_that_does_not_show(tmp_path: Path) -> None:
    report = linted(write(tmp_path, "return x @ w", "[torch.randn(6, 16), w]", "x, w",
                          more="w = torch.cat((torch.ones(8, 3), torch.zeros(8, 3)))"))  # fmt: skip
    assert "half-read" in errors(report)
    assert cheat(report, "second half of the last axis of x not read").accepted
    assert not cheat(report, "second half of the last axis of w not read").accepted


def test_a_precision_that_does_not_show(tmp_path: Path) -> None:
    """The answer hangs on the difference of nearly equal numbers: any precision is as bad."""
    forward = "return (x + 1e9) - 1e9 + 0 * (x @ x)"
    report = linted(write(tmp_path, forward, "[torch.randn(16, 16)]"))
    assert errors(report).get("precision") == {"output"}


def test_a_scalar_that_is_the_same_in_every_case(tmp_path: Path) -> None:
    path = write(tmp_path, "return x * a", "[]", "x, a")
    more = 'def get_inputs(a=1.5, n=6):\n    return [torch.randn(n, 4), a]\nCASES = {"a": {}, %s}\n'
    text = path.read_text()
    path.write_text(text + more % '"b": {"n": 3}')
    assert finding(linted(path), "same-scalar").subject == "a"
    path.write_text(text + more % '"b": {"n": 3, "a": 2.0}')
    report = linted(path)
    assert not report.findings
    baked = cheat(report, "input a taken as the first case's")
    assert baked.cases == ("b",) and not baked.proof


def test_a_cheat_has_to_pass_every_case_and_the_first_case_is_warned_of(tmp_path: Path) -> None:
    path = write(tmp_path, "return F.relu(x)", "[]")
    path.write_text(
        path.read_text() + "def get_inputs(f=torch.rand):\n    return [f(6, 16)]\n"
        'CASES = {"positive": {}, "signed": {"f": torch.randn}}\n'
    )
    report = linted(path)
    assert report.clean
    assert cheat(report, "copy of input x").proof == ("positive",)
    assert "copy of input x (output)" in finding(report, "first-case").message
    assert not linted(path, cases=("positive",)).clean


def test_outputs_are_forged_one_by_one(tmp_path: Path) -> None:
    report = linted(write(tmp_path, 'return {"y": 2.5 * x, "z": 0 * x}', "[torch.randn(6, 16)]"))
    assert errors(report) == {"zero-output": {"output['z']"}}


def test_integer_complex_and_nested_values(tmp_path: Path) -> None:
    forward = (
        'return xs["a"].argmax(-1), torch.fft.fft(xs["a"]) * xs["b"][0], xs["a"] > 0, '
        'xs["b"][0].sum()'
    )
    inputs = '[{"a": torch.randn(9, 32), "b": [torch.randn(32)]}]'
    report = linted(write(tmp_path, forward, inputs, "xs"))
    assert report.clean, report.findings
    assert {c.subject for c in report.cheats if c.kind == "input"} == {"xs['a']", "xs['b'][0]"}
    assert {c.subject for c in report.cheats if c.kind == "output"} == {
        f"output[{i}]" for i in range(4)
    }


def test_large_cases_are_for_what_no_small_one_tells_apart(tmp_path: Path) -> None:
    path = write(tmp_path, "return F.relu(x)", "[]")
    path.write_text(
        path.read_text() + "def get_inputs(f=torch.rand, n=4):\n    return [f(n, n)]\n"
        'CASES = {"a": {}, "large": {"f": torch.randn, "n": 300}, "b": {"n": 5}}\n'
    )
    seen: list[str] = []
    report = linted(path, progress=lambda what, done, total: seen.append(what))
    assert seen == ["lint a", "lint b", "lint large"]
    assert cheat(report, "zeros").cases == ("a", "b")
    copied = cheat(report, "copy of input x")
    assert copied.cases == ("a", "b", "large") and copied.proof == ("a", "b")
    small = linted(path, max_bytes=1000)
    assert small.cases == ("a", "b") and not small.clean
    assert "inputs of 360000 bytes exceed the limit of 1000" in small.skipped[0]


@pytest.mark.parametrize(
    "name",
    sorted(
        name for name, path in problem.known_problems().items() if path.parents[1].name != "ops"
    ),
)
def test_problems_in_the_folder_are_clean_in_their_smaller_cases(name: str) -> None:
    # Its bags have sizes and offsets that only the larger cases tell apart.
    limit = 2_000_000 if name == "embedding_bag_sum" else 50_000
    report = linted(name, max_bytes=limit)
    assert report.clean, [f.message for f in report.findings if f.level == "error"]


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("mla_kv", ("odd", "rank_one")),
        ("gated_recurrence", ("odd_sizes", "zero_gates")),
        ("gated_recurrence_forms", ("head_gate", "packed", "log_gates")),
        ("int8_attention", ("odd", "signed_scales")),
        ("int8_attention_forms", ("packed", "paged_blocks")),
    ],
)
def test_shipped_operators_are_clean(name: str, cases: tuple[str, ...]) -> None:
    report = linted(name, cases=cases)
    assert report.clean, [f.message for f in report.findings if f.level == "error"]


def test_text_says_what_to_change_and_fits(tmp_path: Path) -> None:
    text = render(linted(write(tmp_path, "return F.relu(x)", "[torch.rand(6, 16)]")))
    assert text.startswith("planted: 1 error\n")
    assert "error    identity: a kernel passes whose output is: copy of input x" in text
    assert "use torch.randn" in text
    assert all(len(line) <= 110 for line in text.splitlines())
    clean = render(linted(write(tmp_path, SOUND, DRAWS, "x, z")))
    assert clean.startswith("planted: clean\n") and "the proof passes 0" in clean


def test_exit_codes_and_json(run_cli, tmp_path: Path) -> None:
    weak = write(tmp_path, "return F.relu(x)", "[torch.rand(6, 16)]")
    done = run_cli("lint", str(weak), "--json", "--seed", "5")
    assert done.returncode == 1, done.stderr
    body = json.loads(done.stdout)
    assert [f["code"] for f in body["findings"] if f["level"] == "error"] == ["identity"]
    assert {c["name"] for c in body["cheats"]} >= {"zeros", "copy of input x", "computed in bf16"}
    assert run_cli("lint", "cumsum", "--case", "odd").returncode == 0
    for arguments, words in (
        (["no_such_problem"], "no problem 'no_such_problem'"),
        (["cumsum", "--case", "nothing"], "has no case 'nothing'"),
        (["cumsum", "--max-bytes", "0"], "no case of cumsum could be run"),
        ([str(write(tmp_path, "raise ValueError('no')", "[torch.ones(2)]"))], "fails on case"),
    ):
        done = run_cli("lint", *arguments)
        assert done.returncode == 2 and words in done.stderr and not done.stdout


def test_no_cheat_that_fails_is_explained(monkeypatch, tmp_path: Path) -> None:
    # Nobody reads why a cheat is wrong, and finding it out took most of the time.
    import importlib

    compare = importlib.import_module("kernelproof.check.compare")

    def asked(*_: object) -> str:
        raise AssertionError("explained")

    monkeypatch.setattr(compare, "pattern", asked)
    report = linted(write(tmp_path, SOUND, DRAWS, "x, z"))
    assert report.cheats and not errors(report)
