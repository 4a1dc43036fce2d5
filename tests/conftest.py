"""Shared by all tests: a private data folder, and what a test may need of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernelproof import openmp

# Before any test imports torch: judging takes a third of the processor time.
openmp.wait_passively()

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds and records of a test run stay apart from the user's."""
    home = tmp_path_factory.mktemp("home")
    os.environ["KERNELPROOF_HOME"] = str(home)
    # Sessions of tests judge by themselves, but those that are about their judge.
    os.environ["KERNELPROOF_JUDGE"] = "off"
    return home


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def run_cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `kernelproof` in a fresh process, as a user does."""

    def run(
        *args: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kernelproof", *args]
        own = {**os.environ, **(env or {})}
        return subprocess.run(
            command, cwd=cwd, env=own, capture_output=True, text=True, check=False
        )

    return run
