"""Loading problems, their cases, and other sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelproof import candidate, problem
from kernelproof.errors import CandidateNotFound, ProblemError
from kernelproof.resize import shrink, size_constants, variations, with_sizes

PLAIN = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, width, scale=1.0):
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.scale = scale
    def forward(self, x):
        return self.lin(x) * self.scale
batch = 64
height = width = 16
doubled = 2 * batch
def get_inputs():
    return [torch.rand(doubled, width)]
def get_init_inputs():
    return [width]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "p.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(problem.known_problems()))
def test_every_problem_loads_and_runs_all_its_cases(name: str) -> None:
    reference = problem.load(name)
    assert reference.problem.doc
    for case in reference.problem.cases:
        torch.manual_seed(0)
        args, kwargs = reference.init_args(case)
        with torch.no_grad():
            reference.module.Model(*args, **kwargs).eval()(*reference.inputs(case))
        for count in ("FLOPS", "BYTES"):
            value = reference.count(count, case)
            assert value is None or value >= 0


@pytest.mark.parametrize("name", sorted(problem.known_problems()))
def test_every_baseline_computes_the_problem(name: str) -> None:
    reference = problem.load(name)
    case = reference.problem.cases[0]
    torch.manual_seed(0)
    args, kwargs = reference.init_args(case)
    model = reference.module.Model(*args, **kwargs).eval()
    for label, baseline in getattr(reference.module, "BASELINES", {}).items():
        if isinstance(baseline, type):
            other = baseline(*args, **kwargs).eval()
            states = (m.state_dict().values() for m in (other, model))
            for own, given in zip(*states, strict=True):
                own.copy_(given)
        else:
            other = baseline
        torch.manual_seed(1)
        inputs = reference.inputs(case)
        torch.manual_seed(1)
        again = reference.inputs(case)
        with torch.no_grad():
            expected, got = model(*inputs), other(*again)
        torch.testing.assert_close(got, expected, atol=2e-3, rtol=2e-3, msg=label)


def test_a_plain_kernelbench_file_has_one_case(tmp_path: Path) -> None:
    loaded = problem.load(write(tmp_path, PLAIN))
    assert [c.name for c in loaded.problem.cases] == ["default"]
    assert loaded.init_args(loaded.problem.cases[0]) == ([16], {})
    assert loaded.inputs(loaded.problem.cases[0])[0].shape == (128, 16)


def test_large_inputs_are_drawn_once(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "p.py"
    path.write_text(PLAIN)
    loaded = problem.load(path)
    case, made = loaded.problem.cases[0], []
    inputs = loaded.module.get_inputs
    monkeypatch.setattr(loaded.module, "get_inputs", lambda: made.append(1) or inputs())
    first = loaded.drawn(case, 5)
    assert loaded.drawn(case, 5)[0] is not first[0] and len(made) == 2  # small ones are
    monkeypatch.setattr(problem, "_KEPT_BYTES", 1000)
    kept = loaded.drawn(case, 5)
    again = loaded.drawn(case, 5)
    assert again is not kept and again[0] is kept[0] and len(made) == 3
    assert torch.equal(kept[0], first[0])
    # Another seed, other inputs in between, and a write to them: drawn anew.
    assert not torch.equal(loaded.drawn(case, 6)[0], kept[0])
    loaded.drawn(case, 5)
    loaded.inputs(case)
    before = len(made)
    fresh = loaded.drawn(case, 5)
    assert len(made) == before + 1
    fresh[0].zero_()
    assert torch.equal(loaded.drawn(case, 5)[0], first[0])


def test_init_inputs_may_be_arguments_and_keywords(tmp_path: Path) -> None:
    text = PLAIN.replace("return [width]", "return [[width], {'scale': 2.0}]")
    loaded = problem.load(write(tmp_path, text))
    assert loaded.init_args(loaded.problem.cases[0]) == ([16], {"scale": 2.0})


def test_a_case_reaches_both_functions(tmp_path: Path) -> None:
    text = PLAIN.replace(
        "def get_inputs():\n    return [torch.rand(doubled, width)]",
        "def get_inputs(rows=3, width=16):\n    return [torch.rand(rows, width)]",
    )
    text = text.replace("def get_init_inputs():", "def get_init_inputs(width=16):")
    text += "CASES = {'a': {}, 'b': {'rows': 5, 'width': 7}}\n"
    loaded = problem.load(write(tmp_path, text))
    case = loaded.problem.cases[1]
    assert loaded.init_args(case) == ([7], {})
    assert loaded.inputs(case)[0].shape == (5, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def get_inputs(): return []", "no class `Model`"),
        ("class Model: pass", "no function `get_inputs`"),
        ("import nothing_of_the_kind", "does not import: ModuleNotFoundError"),
        ("class Model:\n  x = (", "does not import: SyntaxError"),
        ("class Model: pass\ndef get_inputs(): return []\nCASES = [1]", "CASES must be a dict"),
    ],
)
def test_an_unreadable_problem_says_why(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ProblemError, match=r"p\.py") as caught:
        problem.load(write(tmp_path, text))
    assert words in str(caught.value)


def test_a_name_is_told_without_running_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLAIN + "raise RuntimeError('it ran')\n")
    assert problem.name_of(path) == "mine"
    # What is defined elsewhere shows only when it runs.
    path.write_text(f"exec({PLAIN!r})\n")
    assert problem.name_of(path) == "mine"
    for text in ("def get_inputs(): return []", "class Model:", "raise RuntimeError('it ran')"):
        path.write_text(text)
        with pytest.raises(ProblemError, match=r"no class|does not import"):
            problem.name_of(path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ProblemError, match="mla_kv"):
        problem.load("no_such_problem")


def test_sizes_are_replaced_and_derived_ones_follow(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    loaded = problem.load(path, {"batch": 3})
    assert loaded.inputs(loaded.problem.cases[0])[0].shape == (6, 16)
    assert loaded.problem.sizes == {"batch": 3}
    with pytest.raises(ProblemError, match="no module-level constant 'depth'"):
        problem.load(path, {"depth": 3})


def test_shrinking_prefers_what_only_the_inputs_use(tmp_path: Path) -> None:
    loaded = problem.load(write(tmp_path, PLAIN), shrink_to=1000)
    assert loaded.problem.sizes == {"batch": 4}
    assert loaded.inputs(loaded.problem.cases[0])[0].shape == (8, 16)


def test_shrinking_keeps_what_the_reference_needs() -> None:
    values = {"batch": 64, "width": 16, "doubled": 128}
    assert size_constants(PLAIN, values) == {"batch": 64, "width": 16}
    found = shrink(
        PLAIN,
        values,
        fits=lambda s: 2 * s.get("batch", 64) * s.get("width", 16) <= 64,
        runs=lambda s: s.get("batch", 64) >= 8,
    )
    assert found == {"batch": 8, "width": 4}
    with pytest.raises(KeyError):
        with_sizes(PLAIN, {"nothing": 1})


def test_sizes_that_depend_on_each_other_shrink_together(tmp_path: Path) -> None:
    text = PLAIN.replace("self.lin(x) * self.scale", "self.lin(x) * torch.ones(shape)[: len(x)]")
    text = text.replace("doubled = 2 * batch", "doubled = 128\nshape = (128, 16)")
    text = text.replace(
        "return [torch.rand(doubled, width)]",
        "return [torch.rand(doubled, width) + torch.rand(shape)]",
    )
    loaded = problem.load(write(tmp_path, text), shrink_to=1000)
    assert loaded.inputs(loaded.problem.cases[0])[0].shape == (8, 16)
    assert loaded.problem.sizes["doubled"] == 8 and loaded.problem.sizes["shape"] == (8, 16)


def test_a_shape_that_is_made_from_sizes_does_not_shrink_without_them(tmp_path: Path) -> None:
    # On the meta device, where shrinking tries a size, labels past the last class are not seen.
    text = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, labels):
        return nn.functional.cross_entropy(x, labels)
rows = 64
classes = 96
shape = (classes,)
def get_inputs():
    return [torch.rand(rows, *shape), torch.randint(0, classes, (rows,))]
"""
    loaded = problem.load(write(tmp_path, text), shrink_to=2000)
    assert set(loaded.problem.sizes) == {"rows", "classes"}
    scores, labels = loaded.inputs(loaded.problem.cases[0])
    assert int(labels.max()) < scores.shape[1]


def test_candidates_are_found_and_hashed(tmp_path: Path) -> None:
    from kernelproof import candidate

    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "candidate.py").write_text(
        "from kernelproof.build import c_library\nc_library(['k.cpp'])"
    )
    (folder / "k.cpp").write_text("int x;")
    one = candidate.load(folder)
    assert (one.name, one.language, one.sources) == ("one", "cpp-c", ("candidate.py", "k.cpp"))
    (folder / "k.cpp").write_text("int y;")
    assert candidate.load(folder).digest != one.digest
    single = candidate.load(folder / "candidate.py")
    assert single.sources == ("candidate.py", "k.cpp")
    with pytest.raises(CandidateNotFound, match="no candidate"):
        candidate.load(tmp_path / "none")
    (folder / "candidate.py").rename(folder / "a.py")
    (folder / "b.py").write_text("")
    with pytest.raises(CandidateNotFound, match="2 Python files"):
        candidate.load(folder)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("import triton\n", "triton"),
        ("import torch.nn as nn, triton, os\n", "triton"),
        ("import tritonparse, triton_viz", "pytorch"),
        ("from kernelproof.cuda import Kernel", "cuda-nvrtc"),
        ("load_inline('a', cpp_sources='', cuda_sources=x)", "cuda-inline"),
        ("load_inline('a', x, '__global__ void f() {}')", "cuda-inline"),
        ("from torch.utils import cpp_extension\ncpp_extension.load('a', ['k.cu'])", "cuda-inline"),
        ("load_inline('a', cpp_sources=x)", "cpp-inline"),
        ("torch_op('ns', ['a.cpp'])", "cpp-stable"),
        ("import torch", "pytorch"),
    ],
)
def test_languages(tmp_path: Path, text: str, language: str) -> None:
    from kernelproof import candidate

    path = tmp_path / "c.py"
    path.write_text(text)
    assert candidate.load(path).language == language


def test_the_language_is_that_of_the_modules_which_a_candidate_imports(tmp_path: Path) -> None:
    from kernelproof import candidate

    (tmp_path / "candidate.py").write_text("import torch, parts\n")
    (tmp_path / "parts.py").write_text("from kernels import run\n")
    (tmp_path / "kernels.py").write_text("import triton\n")
    assert candidate.load(tmp_path).language == "triton"
    (tmp_path / "parts.py").write_text("")
    assert candidate.load(tmp_path).language == "pytorch"


def test_variations_are_one_and_an_odd_number_below_where_the_reference_runs() -> None:
    source = "rows = 100\ncolumns = 8\ndef get_inputs(): return [rows, columns]\n"
    values = {"rows": 100, "columns": 8}
    found = variations(source, values, lambda trial: trial.get("columns") != 1)
    assert found == [{"columns": 7}, {"rows": 1}, {"rows": 65}, {"columns": 7, "rows": 65}]
    assert variations("def get_inputs(): return []", {}, lambda trial: True) == []


def test_other_sizes_are_problems_of_their_own(tmp_path: Path) -> None:
    loaded = problem.load(write(tmp_path, PLAIN))
    others = loaded.other_sizes()
    assert others and all(len(other.problem.cases) == 1 for _, other in others)
    for changed, other in others:
        (case,) = other.problem.cases
        assert changed and changed.items() <= other.problem.sizes.items()
        module = other.module
        module.Model(*other.init_args(case)[0])(*other.inputs(case))
    assert problem.load("rms_norm").other_sizes() == []


def test_an_operator_may_have_further_problems(tmp_path: Path) -> None:
    """`problem_forms.py` beside `problem.py` is `<operator>_forms`, judged with its kernels."""
    loaded = problem.load("gated_recurrence_forms").problem
    assert loaded.name == "gated_recurrence_forms"
    found = candidate.find(loaded.path, "cpu")
    assert found == Path(loaded.path).with_name("cpu.py") and found.is_file()
    alone = tmp_path / "problem_alone.py"
    alone.write_text(PLAIN)
    assert problem.load(alone).problem.name == "problem_alone"
    (tmp_path / "cpu.py").write_text("")
    assert candidate.find(str(alone), "cpu") == Path("cpu")


def test_what_cannot_be_shrunk_says_so(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        PLAIN.replace("self.scale = scale", "self.scale = self.lin.weight.sum().item()")
    )
    with pytest.raises(ProblemError, match=r"cannot be shrunk: .* leave --shrink out"):
        problem.load(path, shrink_to=100)
    assert problem.load(path).problem.cases
