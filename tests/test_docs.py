"""The documents are true: commands run, tables come from results/, output is what prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402

CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
ORDERED = re.compile(r"```console in this order\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def commands() -> list[str]:
    found = []
    for path in generate.documents():
        for block in CONSOLE.findall(path.read_text()):
            found += [line for line in block.splitlines() if line.strip()]
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_every_command_runs(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        # What the targets do is run by their own tests; here, that they exist.
        assert (
            subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True).returncode
            == 0
        )
        return
    arguments = words[1:] if words[0] == "python" else ["-m", *words]
    arguments = [str(tmp_path / a) if a == "report.html" else a for a in arguments]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    wrong = "candidates/wrong" in command
    assert done.returncode == (1 if wrong else 0), done.stderr
    assert done.stdout


def test_commands_in_order_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELPROOF_JUDGE")  # as a user has it
    blocks = [b for d in generate.documents() for b in ORDERED.findall(d.read_text())]
    assert blocks
    for block in blocks:
        for command in block.splitlines():
            words = [str(tmp_path / w) if w == "attempts" else w for w in shlex.split(command)]
            done = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.parametrize("path", generate.documents(), ids=lambda p: p.name)
def test_tables_come_from_results(path: Path) -> None:
    text = path.read_text()
    assert generate.fill(text, with_output=False) == text, "run `python docs/generate.py`"


def shape(text: str) -> list[str]:
    """Words without numbers, so that a faster machine prints the same."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?( ?(ns|us|ms|s)\b)?", "N", line)
        # Why the rounds ended is up to the machine.
        line = re.sub(r"(timing ended after) .*", r"\1", line)
        line = re.sub(r"\b(FASTER|SAME|SLOWER|UNCLEAR)\b", "ANSWER", line)
        line = re.sub(r"[A-Z]?FLOP/s|[KMG]?i?B(/s)?", "UNIT", line)
        # Which bound is the largest is the machine's business.
        line = re.sub(r"^( *(floor N|other bounds:)).*", r"\1", line)
        lines.append(re.sub(r"\s+", " ", line).strip())
    return [line for line in lines if line]


@pytest.mark.parametrize(
    "part",
    [
        p
        for d in generate.documents()
        for p in generate.PART.findall(d.read_text())
        if p[0] == "output"
    ],
    ids=lambda p: p[1],
)
def test_printed_output_is_what_prints(part: tuple[str, str, str]) -> None:
    _, command, printed = part
    assert shape(generate.output(command)) == shape(printed), "run `python docs/generate.py`"


def test_the_session_of_the_agents_page_is_what_is_played() -> None:
    """Statuses and calls left, emulated here: errors depend on secret seeds, and times are those of
    a GPU."""

    def outcomes(text: str) -> list[str]:
        found = r"^(?:compile|check|bench|submit) \d+: \w+|\d of \d calls left$"
        return re.findall(found, text, re.MULTILINE)

    page = (ROOT / "docs" / "agents.md").read_text()
    played = generate.agents_session.played()
    assert len(outcomes(played)) == 2 * len(generate.agents_session.STEPS) + 2
    assert outcomes(played) == outcomes(page), "run docs/agents_session.py on a GPU"
    surprise = played.partition("bench 4: wrong")[2].partition("```")[0]
    assert "as large as that of tf32" in " ".join(surprise.split())


@pytest.mark.parametrize("path", generate.documents(), ids=lambda p: p.name)
def test_python_blocks_run(path: Path) -> None:
    for block in PYTHON.findall(path.read_text()):
        subprocess.run([sys.executable, "-c", block], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "path", [*generate.documents(), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_every_cli_command_is_documented() -> None:
    from kernelproof.cli import app

    text = (ROOT / "docs" / "cli.md").read_text()
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert re.search(rf"\b{name}\b", text), name
        assert command.callback.__doc__


def test_every_operator_is_documented() -> None:
    from kernelproof.problem import shipped_operators

    text = (ROOT / "docs" / "ops.md").read_text()
    for name, folder in shipped_operators().items():
        assert f"`{name}`" in text
        assert (folder / "README.md").is_file()
