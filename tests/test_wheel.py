"""The wheel is complete: what it holds, and what it does in an environment without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelproof.problem import shipped_operators

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
DATA = {".cu", ".cuh", ".cpp", ".css", ".h", ".html", ".js", ".md", ".typed"}


def command(*args: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run something that must work, and return its stdout."""
    done = subprocess.run(
        [str(a) for a in args], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    root = Path(__file__).resolve().parents[1]
    out = tmp_path_factory.mktemp("wheel")
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", out)
    command(sys.executable, *build, root, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel installed.

    What it depends on comes from the environment that runs the tests, whose folders stand last on
    the path: an editable kernelproof in them lies in a folder that their own `.pth` files name,
    and those are not read for a folder that is on the path only.
    """
    folder = tmp_path_factory.mktemp("venv") / "venv"
    command(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
    command(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder.parent)
    (site,) = folder.glob("lib/python*/site-packages")
    others = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    (site / "others.pth").write_text("".join(f"{p}\n" for p in others))
    return folder


@pytest.fixture
def run(venv: Path, tmp_path: Path) -> Run:
    """Run a program of the new environment in an empty folder with a fresh data folder."""
    work = tmp_path / "work"
    work.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    env["KERNELPROOF_HOME"] = str(tmp_path / "home")

    def start(program: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
        line = [str(venv / "bin" / program), *map(str, args)]
        return subprocess.run(line, cwd=work, env=env, capture_output=True, text=True, check=False)

    return start


def test_it_holds_everything(wheel: Path, root: Path) -> None:
    package = root / "src" / "kernelproof"
    wanted = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.suffix in DATA | {".py"} and path.is_file()
    }
    wanted |= {f"kernelproof/problems/{path.name}" for path in (root / "problems").glob("*.py")}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert not wanted - held
    for suffix in (".cu", ".cpp", ".html", ".md"):
        assert [name for name in held if name.endswith(suffix)], suffix
    assert "kernelproof/py.typed" in held
    assert "kernelproof/ops/_template/kernel.cu" in held
    assert "kernelproof/problems/rms_norm.py" in held
    assert [name for name in held if name.endswith("licenses/LICENSE")]


def test_it_holds_nothing_else(wheel: Path) -> None:
    for name in zipfile.ZipFile(wheel).namelist():
        top, _, rest = name.partition("/")
        assert top == "kernelproof" or top.endswith(".dist-info"), name
        assert "__pycache__" not in rest and not name.endswith((".pyc", ".so", ".cubin")), name


def test_it_is_the_wheel_that_runs(venv: Path, run: Run, root: Path) -> None:
    code = (
        "import kernelproof, kernelproof.scaffold, sys, torch\n"
        "from kernelproof.problem import known_problems\n"
        "print(kernelproof.__file__, kernelproof.scaffold.__file__)\n"
        "print(*known_problems().values(), *sys.path, sep='\\n')"
    )
    done = run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert all(Path(p).is_relative_to(venv) for p in first.split()), first
    assert str(root / "src") not in rest
    files = [Path(line) for line in rest if line.endswith(".py")]
    assert len(files) >= len(list((root / "problems").glob("*.py"))) + 3
    assert all(p.is_relative_to(venv) for p in files), files
    expected = command(sys.executable, "-c", "import torch; print(torch.__file__)", cwd=root)
    assert run("python", "-c", "import torch; print(torch.__file__)").stdout == expected


def test_the_demo_runs(run: Run, tmp_path: Path, root: Path) -> None:
    done = run("kernelproof", "demo", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line]
    operators = set(shipped_operators())
    assert len(operators) >= 3
    found = {(row[0], row[2]) for row in rows if row[0] in operators}
    assert found == {(name, "pass") for name in operators}, done.stdout
    report = (tmp_path / "work" / "report.html").read_text()
    assert all(name in report for name in operators)
    assert f"{root}/" not in done.stdout + report
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["report.html"]
    assert (tmp_path / "home" / "builds").is_dir()


def test_the_doctor_runs(run: Run, tmp_path: Path) -> None:
    done = run("kernelproof", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    facts = {fact["name"]: fact["value"] for fact in json.loads(done.stdout)["facts"]}
    assert facts["data folder"] == str(tmp_path / "home")
    assert {"rms_norm", *shipped_operators()} <= set(facts["problems"].split(", "))


def test_a_problem_is_found_by_name(run: Run, tmp_path: Path, root: Path, venv: Path) -> None:
    source = root / "tests" / "candidates" / "right" / "rms_norm__norm_of_row.py"
    candidate = tmp_path / "mine.py"
    candidate.write_text(source.read_text())
    done = run("kernelproof", "check", "rms_norm", candidate, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "pass"
    # Relative to the package: found in the wheel, not in the checkout.
    assert record["problem"]["path"] == "kernelproof/problems/rms_norm.py"


def test_a_new_operator_works_in_place(run: Run, venv: Path) -> None:
    """Last, because it stays in the environment."""
    assert run("kernelproof", "new-op", "gated_product").returncode == 0
    done = run("kernelproof", "check", "gated_product", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    code = (
        "import torch\nfrom kernelproof.ops.gated_product import gated_product as f\n"
        "x, y = torch.randn(2, 9, 5)\ntorch.testing.assert_close(f(x, y), x * torch.sigmoid(y))"
    )
    done = run("python", "-c", code)
    assert done.returncode == 0, done.stderr
