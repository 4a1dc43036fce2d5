"""The script that shows a failure really shows it, with PyTorch alone."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kernelproof.pipeline import Options, judge
from kernelproof.reproducer import _literal
from kernelproof.types import Record

FOLDER = Path(__file__).parent / "candidates"
WRONG, RIGHT = FOLDER / "wrong", FOLDER / "right"


def judged(path: Path, **options) -> Record:
    return judge(path.name.split("__")[0], path, options=Options(seeds=2, seed=7, **options))


def run(text: str, folder: Path, *arguments: str, apart: bool = False):
    """Run the script: ``apart``, where kernelproof cannot be imported, or here, which is faster."""
    script = folder / "repro.py"
    script.write_text(text)
    if not apart:
        return run_here(script, *arguments)
    (folder / "kernelproof.py").write_text("raise ImportError('no kernelproof here')\n")
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, cwd=folder,
        check=False,
    )  # fmt: skip


def run_here(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    out, kept = io.StringIO(), (sys.argv, list(sys.meta_path))
    sys.argv, code = [str(script), *arguments], None
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv, sys.meta_path[:] = kept
    return subprocess.CompletedProcess([], code, out.getvalue(), "")


# Wrong candidate, a right one of the same problem.
PAIRS = [
    ("axpby__last_column_unwritten", "axpby__select"),  # plain values
    ("axpby__first_scalars", "axpby__select"),  # only after other calls
    ("axpby__works_in_place", "axpby__select"),  # changes its input
    ("axpby__view_of_input", "axpby__select"),  # right values, shared memory
    ("cumsum__shared_buffer", "cumsum__doubling"),  # only by the next call
    ("embedding_bag_sum__empty_bags_unwritten", "embedding_bag_sum__prefix_sums"),  # filled memory
    ("layernorm_stats__missing_key", "layernorm_stats__native"),  # structure
    ("linear_gelu__tanh", None),  # weights, a small error
    ("rms_norm__half_squares", "rms_norm__norm_of_row"),  # fp16 case, weights
    ("softmax_with_lse__no_maximum", "softmax_with_lse__online"),  # NaN, two outputs
    ("topk_indices__last_of_ties", "topk_indices__repeated_argmax"),  # integers
]


@pytest.mark.parametrize(("wrong", "right"), PAIRS)
def test_it_fails_the_wrong_and_passes_the_right(wrong: str, right: str, tmp_path: Path) -> None:
    record = judged(WRONG / f"{wrong}.py")
    assert record.status == "wrong" and record.reproducer
    # One pair without kernelproof in reach shows that the script stands alone.
    apart = wrong == PAIRS[0][0]
    done = run(record.reproducer, tmp_path, str(WRONG / f"{wrong}.py"), apart=apart)
    assert done.returncode == 1 and done.stdout.startswith(f"WRONG: {wrong}.py"), done.stderr
    failed = next(
        (o for o in record.verdict.runs[-1].outputs if o.worst_index and not o.passed), None
    )
    if failed is not None:
        # The same element with the same value, computed anew.
        place = f"{failed.name}{list(failed.worst_index)} is {failed.worst_got:.9g}, "
        assert place in done.stdout, done.stdout
    if right is not None:
        mended = run(record.reproducer, tmp_path, str(RIGHT / f"{right}.py"), apart=apart)
        assert mended.returncode == 0 and mended.stdout == f"right: {right}.py\n", (
            mended.stdout + mended.stderr
        )


def test_a_state_that_is_kept_is_shown_as_such(tmp_path: Path) -> None:
    record = judged(WRONG / "axpby__first_scalars.py")
    done = run(record.reproducer, tmp_path, str(WRONG / "axpby__first_scalars.py"))
    assert re.search(r"only after \d+ earlier calls", done.stdout), done.stdout


def test_the_smallest_case_fails_too(tmp_path: Path) -> None:
    path = WRONG / "axpby__last_column_unwritten.py"
    record = judged(path)
    assert record.verdict.smallest is not None
    done = run(record.reproducer, tmp_path, str(path), "--smallest")
    assert done.returncode == 1 and "'columns': 1" in done.stdout
    right = run(record.reproducer, tmp_path, str(RIGHT / "axpby__select.py"), "--smallest")
    assert right.returncode == 0, right.stdout


def test_a_crash_is_reproduced_and_a_right_candidate_has_no_script(tmp_path: Path) -> None:
    record = judged(WRONG / "mla_kv__raises.py")
    assert record.status == "crash"
    done = run(record.reproducer, tmp_path, str(WRONG / "mla_kv__raises.py"), apart=True)
    assert done.returncode == 1 and "AttributeError" in done.stderr
    assert judged(RIGHT / "axpby__select.py", cases=("one",)).reproducer == ""


def test_an_error_that_only_its_structure_shows_is_recognised(tmp_path: Path) -> None:
    text = (
        "import torch\nclass {name}(torch.nn.Module):\n    def forward(self, x):\n"
        "        v = x.float()\n        var = v.var(-1, keepdim=True, unbiased={unbiased})\n"
        "        y = (v - v.mean(-1, keepdim=True)) * torch.rsqrt(var + 1e-5)\n"
        "        return y.to(x.dtype)\n"
    )
    problem, wrong, right = (tmp_path / f"{n}.py" for n in ("norm", "wrong", "right"))
    problem.write_text(
        text.format(name="Model", unbiased=False)
        + "def get_inputs(): return [(3 * torch.randn(48, 1024)).bfloat16()]\n"
    )
    wrong.write_text(text.format(name="ModelNew", unbiased=True))
    right.write_text(text.format(name="ModelNew", unbiased=False))
    record = judge(problem, wrong, options=Options(seeds=2, seed=7))
    assert record.status == "wrong" and all(o.passed for o in record.verdict.runs[-1].outputs)
    assert "bit for bit" in run(record.reproducer, tmp_path, str(wrong)).stdout
    assert run(record.reproducer, tmp_path, str(right)).returncode == 0


NORM = (
    "import torch\nclass {name}(torch.nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n        self.n = torch.nn.LayerNorm(33)\n"
    "    def forward(self, x):\n        return {body}\n"
)
SOFTMAX = (
    "import torch\nclass {name}(torch.nn.Module):\n    def forward(self, x):\n"
    "        return {body}\n"
)
SIZED = SOFTMAX.replace("class", "N = 33\nclass", 1)

# Name of the variant, template, the reference's body, a wrong one, options.
VARIANTS = [
    ("weights", NORM, "self.n(x)", "torch.nn.functional.layer_norm(x, [33])", {}),
    ("large", SOFTMAX, "torch.softmax(x, -1)", "x.exp() / x.exp().sum(-1, keepdim=True)", {}),
    ("transposed", SOFTMAX, "x + 1", "x.as_strided(x.shape, (33, 1)) + 1", {}),
    ("offset", SOFTMAX, "x + 1", "x + 1 if x.data_ptr() % 16 == 0 else x + 2", {}),
    ("expanded", SOFTMAX, "x + 1", "x + 1 if x.stride(0) else x + 2", {}),
    ("N=1", SIZED, "x + 1", "x + 1 if x.shape[-1] > 1 else x + 2", {"level": "thorough"}),
]


@pytest.mark.parametrize(("variant", "form", "body", "wrong", "options"), VARIANTS)
def test_variants_are_made_again(
    variant: str, form: str, body: str, wrong: str, options: dict, tmp_path: Path
) -> None:
    problem, bad, good = (tmp_path / f"{n}.py" for n in ("problem", "bad", "good"))
    width = "N" if "N =" in form else "33"
    problem.write_text(
        form.format(name="Model", body=body)
        + f"def get_inputs(): return [3 * torch.randn(21, {width})]\n"
    )
    bad.write_text(form.format(name="ModelNew", body=wrong))
    good.write_text(form.format(name="ModelNew", body=body))
    record = judge(problem, bad, options=Options(seeds=1, seed=7, **options))
    assert record.status == "wrong"
    assert record.verdict.failing.variant.label == variant, record.verdict.message
    shown = run(record.reproducer, tmp_path, str(bad), apart=variant == "offset")
    assert shown.returncode == 1 and f"case default [{variant}]" in shown.stdout, shown
    mended = run(record.reproducer, tmp_path, str(good))
    assert mended.returncode == 0, mended


def test_changed_sizes_are_in_the_script(tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text(
        "import torch\nN = 8\n"
        "class Model(torch.nn.Module):\n    def forward(self, x): return x + 1\n"
        "def get_inputs(): return [torch.randn(3, N)]\n"
    )
    candidate = tmp_path / "candidate.py"
    candidate.write_text(
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x + 2\n"
    )
    options = Options(seeds=1, seed=7, sizes=(("N", 5),))
    record = judge(problem, candidate, options=options)
    done = run(record.reproducer, tmp_path)
    worst = record.verdict.runs[-1].outputs[0].worst_index
    assert done.returncode == 1 and f"output{list(worst)} is " in done.stdout and worst[1] < 5
    candidate.write_text(candidate.read_text().replace("x + 2", "x + 1"))
    assert run(record.reproducer, tmp_path).returncode == 0


def test_the_script_names_no_kernelproof_and_no_machine_path() -> None:
    text = judged(WRONG / "axpby__last_column_unwritten.py").reproducer
    assert not re.search(r"^\s*(from|import) kernelproof", text, re.MULTILINE)
    compile(text, "repro.py", "exec")


def test_the_command_line_writes_it_and_says_how(run_cli, tmp_path: Path) -> None:
    path, script = WRONG / "axpby__last_column_unwritten.py", tmp_path / "repro.py"
    plain = run_cli("check", "axpby", str(path), "--seeds", "1")
    assert plain.returncode == 1 and "--repro FILE" in plain.stdout
    written = run_cli("check", "axpby", str(path), "--seeds", "1", "--repro", str(script))
    assert written.returncode == 1 and f"python {script}" in written.stdout
    assert "ModelNew" in script.read_text()
    right = run_cli(
        "check", "axpby", str(RIGHT / "axpby__select.py"), "--case", "one", "--repro",
        str(tmp_path / "none.py"),
    )  # fmt: skip
    assert right.returncode == 0 and not (tmp_path / "none.py").exists()
    assert "--repro" not in right.stdout


def test_literals() -> None:
    import torch

    value = {"a": [1, (2,)], "b": float("inf"), "c": torch.float16, "d": None, "e": "x"}
    assert eval(_literal(value), {"torch": torch}) == value
    assert eval(_literal(float("nan"))) != eval(_literal(float("nan")))
