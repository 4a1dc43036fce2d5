"""What `new-op` and `new-problem` write works as it is."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelproof import problem
from kernelproof.cuda import Kernel
from kernelproof.errors import UnsupportedError, UsageError
from kernelproof.pipeline import Options, judge
from kernelproof.scaffold import new_op, new_problem
from kernelproof.types import Record

QUICK = Options(device="cpu", seeds=2, seed=3)
NAME = "gated_product"
# A new name moves line breaks and sorting; these are the shortest and a long one.
NAMES = ("x", "an_operator_with_a_long_name")
BAD = ("", "2x", "a-b", "a b", "a.b", "../up", "lambda", "_hidden", "größe")
RESERVED = ("torch", "cpu", "contract", "problem")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new operator."""
    folder = tmp_path_factory.mktemp("operators")
    assert str(folder / NAME) in new_op(NAME, folder)
    return folder / NAME


@pytest.fixture(scope="module")
def package(made: Path) -> Iterator[ModuleType]:
    """The new operator, imported from where it lies."""
    sys.path.insert(0, str(made.parent))
    yield importlib.import_module(NAME)
    sys.path.remove(str(made.parent))


def told(record: Record) -> str:
    return f"{record.verdict.message}\n{record.verdict.detail}"


def test_nothing_of_the_template_is_left_out_or_left_over(made: Path, root: Path) -> None:
    template = root / "src" / "kernelproof" / "ops" / "_template"
    assert {p.name for p in made.iterdir()} == {p.name for p in template.iterdir() if p.is_file()}
    for path in made.iterdir():
        text = path.read_text()
        assert NAME in text or path.suffix in (".cu", ".cpp"), path.name
        assert "template" not in text, path.name


def test_the_cpu_kernel_passes(made: Path) -> None:
    record = judge(made / "problem.py", made / "cpu.py", options=QUICK)
    assert record.status == "pass", told(record)
    assert record.verdict.proof and record.verdict.compat
    assert record.problem.name == NAME
    assert record.candidate.language == "cpp-c"
    cases = problem.load(made).problem.cases
    assert {run.case for run in record.verdict.runs} == {case.name for case in cases}


def test_its_timing_has_all_baselines_and_counts(made: Path) -> None:
    reference = problem.load(made)
    baselines = ("eager", *reference.problem.baselines)
    options = Options(device="cpu", seeds=1, cases=("odd_sizes",), baselines=baselines, rounds=2)
    timing = judge(made, "cpu", timed=True, options=options).timing
    assert timing is not None
    assert {one.name for one in timing.baselines} == set(baselines)
    assert not [one.problem for one in timing.baselines if one.problem]
    assert timing.flops == 4 * 3 * 7 * 11
    assert timing.bytes == 12 * 3 * 7 * 11


def test_baselines_compute_the_problem_and_mistakes_do_not(made: Path) -> None:
    module = problem.load(made).module
    x, y = module.get_inputs()
    expected = module.Model()(x, y)
    for baseline in module.BASELINES.values():
        torch.testing.assert_close(baseline(x, y), expected)
    for mistake in module.MISTAKES.values():
        assert not torch.allclose(mistake(x, y), expected, atol=0.1)


def test_a_planted_bug_in_the_kernel_fails(made: Path, tmp_path: Path) -> None:
    new_op(NAME, tmp_path)
    kernel = tmp_path / NAME / "kernel.cpp"
    kernel.write_text(kernel.read_text().replace("y[i] < 0.0f ? e : 1.0f", "1.0f"))
    record = judge(tmp_path / NAME, "cpu", options=QUICK)
    assert record.status == "wrong", told(record)


def test_the_cuda_kernel_compiles(made: Path) -> None:
    for arch in ("sm_80", "sm_90a"):
        assert Kernel(made / "kernel.cu", f"{NAME}_kernel").compile(arch).startswith(b"\x7fELF")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_the_cuda_kernel_is_emulated_without_a_gpu(made: Path) -> None:
    record = judge(made, "cuda")
    assert record.status == "pass" and record.verdict.evidence == "emulated", told(record)
    assert record.candidate.language == "cuda-nvrtc"


@pytest.mark.gpu
def test_the_cuda_kernel_passes(made: Path, package: ModuleType) -> None:
    record = judge(made, "cuda", options=Options(device="cuda"))
    assert record.status == "pass", told(record)
    x, y = torch.randn(2, 65, 33, device="cuda")
    torch.testing.assert_close(package.gated_product(x.T, y.T), (x * torch.sigmoid(y)).T)


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (3, 5, 7), (300, 200)])
def test_the_function_computes_it(package: ModuleType, shape: tuple[int, ...]) -> None:
    x, y = torch.randn(shape), 9 * torch.randn(shape)
    for impl in (None, "cpu", "reference"):
        torch.testing.assert_close(package.gated_product(x, y, impl=impl), x * torch.sigmoid(y))


def test_the_function_takes_strides_and_extremes(package: ModuleType) -> None:
    x, y = torch.randn(40, 60).T, torch.randn(60, 80)[:, ::2]
    out = package.gated_product(x, y)
    torch.testing.assert_close(out, x * torch.sigmoid(y))
    assert out.is_contiguous()
    inf, nan = float("inf"), float("nan")
    y = torch.tensor([inf, -inf, -95.0, nan, 0.0, 200.0])
    exact = (2.0 * torch.sigmoid(y.double())).float()
    found = package.gated_product(torch.full((6,), 2.0), y)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=2e-45, equal_nan=True)


def test_the_reference_has_gradients_and_other_dtypes(package: ModuleType) -> None:
    x, y = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    function = lambda a, b: package.gated_product(a, b, impl="reference")  # noqa: E731
    assert torch.autograd.gradcheck(function, (x, y))


def test_what_the_function_does_not_take(package: ModuleType) -> None:
    call, x = package.gated_product, torch.randn(2, 3)
    for error, words, run in (
        (ValueError, r"'gpu'.*'reference'", lambda: call(x, x, impl="gpu")),
        (ValueError, r"\(2, 3\).*\(3,\).*broadcast", lambda: call(x, x[0])),
        (ValueError, r"float32.*float64", lambda: call(x, x.double())),
        (ValueError, r"int64.*x\.float", lambda: call(x.long(), x.long())),
        (ValueError, r"cpu.*meta", lambda: call(x, x.to("meta"), impl="reference")),
        (UnsupportedError, r"float64.*reference", lambda: call(x.double(), x.double())),
        (UnsupportedError, r"'cuda'.*'cpu'", lambda: call(x, x, impl="cuda")),
        (UnsupportedError, r"'meta'.*reference", lambda: call(x.to("meta"), x.to("meta"))),
        (UnsupportedError, r"no gradient.*reference", lambda: call(x, x.clone().requires_grad_())),
    ):
        with pytest.raises(error, match=words):
            run()


def test_the_operator_is_one_for_pytorch(package: ModuleType) -> None:
    x, y = torch.randn(6, 5), torch.randn(5, 6).T
    torch.library.opcheck(torch.ops.kernelproof.gated_product.default, (x, y))
    compiled = torch.compile(
        lambda a, b: 2 * package.gated_product(a + 1, b), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(x, y), 2 * (x + 1) * torch.sigmoid(y))
    with pytest.raises(ValueError, match="shape"):  # the operator itself checks
        torch.ops.kernelproof.gated_product(x, y[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_new_operator_is_clean(name: str, tmp_path: Path, root: Path) -> None:
    new_op(name, tmp_path)
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", "pyproject.toml", str(tmp_path)],
            cwd=root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("create", [new_op, new_problem])
@pytest.mark.parametrize("name", [*BAD, *RESERVED])
def test_a_bad_name_is_refused(
    create: Callable[[str, Path], str], name: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"usable name|another"):
        create(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_taken_name_is_refused(made: Path, tmp_path: Path) -> None:
    before = (made / "problem.py").read_text()
    with pytest.raises(UsageError, match=f"{NAME} exists already"):
        new_op(NAME, made.parent)
    assert (made / "problem.py").read_text() == before
    for name in (*problem.shipped_operators(), "rms_norm"):
        with pytest.raises(UsageError, match=f"{name}.* is a problem already|exists already"):
            new_op(name, tmp_path)
        with pytest.raises(UsageError, match="already"):
            new_op(name)
    new_problem(NAME, tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        new_problem(NAME, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for create in (new_op, new_problem):
        with pytest.raises(UsageError, match=r"file.* cannot be written"):
            create(NAME, file)


def test_the_template_is_no_operator() -> None:
    assert not [name for name in problem.known_problems() if "template" in name]
    assert "_template" not in problem.shipped_operators()


def test_a_new_problem_works(tmp_path: Path) -> None:
    path = tmp_path / "my_problem.py"
    assert str(path) in new_problem("my_problem", tmp_path)
    assert "template" not in path.read_text()
    loaded = problem.load(path).problem
    assert loaded.name == "my_problem"
    assert "my_problem" in loaded.doc
    copy = tmp_path / "copy.py"
    copy.write_text(path.read_text().replace("class Model(", "class ModelNew("))
    record = judge(path, copy, options=QUICK)
    assert record.status == "pass", told(record)
    assert len({run.case for run in record.verdict.runs}) == len(loaded.cases)


def test_the_commands(run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path):
    done = run_cli("new-problem", "my_problem", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "my_problem.py") in done.stdout
    assert (tmp_path / "my_problem.py").is_file()
    for arguments in (["new-problem", "my_problem"], ["new-op", "2x"], ["new-op", "mla_kv"]):
        done = run_cli(*arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("kernelproof: ")
        assert not done.stdout
