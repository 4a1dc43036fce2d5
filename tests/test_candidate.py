"""What is found as a candidate, and what is told of what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof import candidate
from kernelproof.errors import CandidateNotFound


def test_a_link_to_nowhere_and_a_folder_that_looks_like_a_source_are_no_sources(
    tmp_path: Path,
) -> None:
    (tmp_path / "candidate.py").write_text("import gone\n")
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    (tmp_path / "kernels.cu").mkdir()
    assert candidate.load(tmp_path).sources == ("candidate.py",)
    assert candidate.load(tmp_path / "candidate.py").sources == ("candidate.py",)


def test_no_path_is_no_candidate_not_the_current_folder() -> None:
    with pytest.raises(CandidateNotFound, match="no candidate ''"):
        candidate.load("")


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text("")

    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(CandidateNotFound, match=r"cannot read .*mine\.py: Permission denied"):
        candidate.load(file)


def test_of_a_kernel_alone_it_is_said_where_it_goes(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("")
    with pytest.raises(CandidateNotFound, match="kernelproof race"):
        candidate.load(tmp_path / "k.cu")


@pytest.mark.parametrize(
    ("call", "language"),
    [
        ("load_inline('x', cpp, cuda, functions=['f'])", "cuda-inline"),
        ("torch.utils.cpp_extension.load_inline('x', cpp, [cuda], ['f'])", "cuda-inline"),
        ("load_inline(name='x', cpp_sources=cpp, cuda_sources=cuda)", "cuda-inline"),
        ("load_inline('x', cpp, functions=['f'])", "cpp-inline"),
        ("load_inline('x', cpp, None, ['f'])", "cpp-inline"),
    ],
)
def test_cuda_sources_are_seen_with_and_without_their_name(
    tmp_path: Path, call: str, language: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"from torch.utils.cpp_extension import load_inline\next = {call}\n")
    assert candidate.load(file).language == language


@pytest.mark.parametrize("name", ["mla_kv", "gated_recurrence", "int8_attention"])
def test_kernels_of_an_operator_have_each_their_own_language(name: str) -> None:
    """One for the CPU is in a package with CUDA that its package imports; it is timed, not
    emulated."""
    folder = Path(candidate.__file__).parent / "ops" / name
    assert candidate.load(folder / "cuda.py").language == "cuda-nvrtc"
    assert candidate.load(folder / "cpu.py").language.startswith("cpp-")


def test_a_module_that_a_plain_candidate_imports_tells_its_language(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("import triton\n")
    (tmp_path / "candidate.py").write_text("from .kernels import softmax\n\nclass ModelNew: ...\n")
    assert candidate.load(tmp_path).language == "triton"
