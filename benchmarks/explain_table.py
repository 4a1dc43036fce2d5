"""What each wrong fixture of tests/candidates/wrong is told, as a Markdown table on stdout.

python benchmarks/explain_table.py [WORD]   only fixtures whose name contains WORD
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from kernelproof.pipeline import Options, judge

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "candidates" / "wrong"
SKIPPED = ("abort", "exit", "infinite_loop", "cuda", "cpp", "stable")


def bug(path: Path) -> str:
    """The first line of the fixture's docstring."""
    text = (path / "candidate.py" if path.is_dir() else path).read_text()
    try:
        return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    except SyntaxError:
        return ""


def told(path: Path) -> tuple[str, str]:
    """The words after the numbers, and the smallest failing case."""
    options = Options(device="cpu", seeds=2, seed=7, call_timeout=60.0)
    verdict = judge(path.name.split("__")[0], path, options=options).verdict
    if verdict.status != "wrong":
        return "", ""
    text, _, size = verdict.message.partition("Smallest failing case: ")
    _, limit, words = text.partition("(limit 12)")
    return (words if limit else text).strip(". "), size


def main() -> None:
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    print("| fixture | its bug | what it is told | smallest failing case |\n|---|---|---|---|")
    for path in sorted(FOLDER.iterdir()):
        if "__" not in path.name or only not in path.name or any(s in path.name for s in SKIPPED):
            continue
        if 'EXPECT = "wrong"' not in (path / "candidate.py" if path.is_dir() else path).read_text():
            continue
        words, size = told(path)
        cells = (f"`{path.stem}`", bug(path), words or "(no pattern)", size or "-")
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
