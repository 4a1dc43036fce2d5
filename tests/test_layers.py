"""The import rule, and what importing costs, each in a fresh process."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "kernelproof"

# Stage -> what else of kernelproof it may import. `types` and `errors` are open to all.
OPEN = {
    "timeline", "types", "errors", "home", "importing", "seeding", "spare", "staging", "strides",
    "backward",
}  # fmt: skip
STAGES = {
    "problem": {"resize"},
    "candidate": set(),
    "build": set(),
    "check": set(),
    "timing": {"cuda"},  # the launch floor is a kernel like any other
    "work": set(),
    "floors": {"cuda", "environment"},  # kernels that measure; the names that floors are kept by
    "report": set(),
    "store": set(),
    "emulate": {"build", "cuda", "cuda_launch", "launching", "tensor_map"},
    "inspect": {"build", "cuda", "emulate", "report"},  # of report the units only
}
# Applications of the stages: what they may import, and who may import them.
LEAVES = {
    "lint": ({"problem", "check", "report", "resize"}, {"cli", "commands"}),
    "serve": ({"board", "problem", "report", "session", "store", "suite"}, {"serve_command"}),
}


def imported(path: Path) -> set[str]:
    """First names below `kernelproof` that a module imports at run time."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and child.module:
                parts = child.module.split(".")
                if parts[0] == "kernelproof":
                    names = [parts[1]] if len(parts) > 1 else [a.name for a in child.names]
                    found.update(names)
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    parts = alias.name.split(".")
                    if parts[0] == "kernelproof" and len(parts) > 1:
                        found.add(parts[1])
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def modules(stage: str) -> list[Path]:
    folder = SRC / stage
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [SRC / f"{stage}.py"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_no_other_stage(stage: str) -> None:
    for path in modules(stage):
        extra = imported(path) - OPEN - STAGES[stage] - {stage}
        assert not extra, f"{path.relative_to(SRC)} imports {sorted(extra)}"


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_is_imported_by_the_command_line_only(leaf: str) -> None:
    uses, users = LEAVES[leaf]
    for path in modules(leaf):
        extra = imported(path) - OPEN - uses - {leaf}
        assert not extra, f"{path.relative_to(SRC)} imports {sorted(extra)}"
    for path in SRC.rglob("*.py"):
        own = path.relative_to(SRC).with_suffix("").parts[0]
        if own not in (leaf, *users):
            assert leaf not in imported(path), f"{path.relative_to(SRC)} imports {leaf}"


def test_the_rule_sees_an_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from kernelproof.timing import measure\n")
    assert imported(bad) == {"timing"}


def fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    return done.stdout.strip()


def test_import_needs_no_torch() -> None:
    code = "import sys, kernelproof; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    assert fresh(code) == "False False"


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom kernelproof.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: print('exit', e.code)\n"
        "print('torch' in sys.modules)"
    )
    lines = fresh(code).splitlines()
    assert lines[-2:] == ["exit 0", "False"]


@pytest.mark.parametrize(
    "arguments", [["-c", "import kernelproof"], ["-m", "kernelproof", "--help"]]
)
def test_import_and_help_are_quick(arguments: list[str]) -> None:
    """The promise is 0.3 s: of processor time, so that a busy machine does not decide."""
    best = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, used)
    assert best < 0.3
