"""Stage 2: find a candidate, its language and its content hash. Nothing of it is run here."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from kernelproof.errors import CandidateNotFound
from kernelproof.types import Candidate

_SOURCE_SUFFIXES = {".py", ".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".inc"}
ENTRY_NAMES = ("candidate.py", "model_new.py", "solution.py", "__init__.py")

_ALONE = "; a kernel alone goes to `kernelproof race` and `kernelproof inspect`"

# First match wins, so the more telling marks stand first.
_LANGUAGE_MARKS = (
    ("triton", r"^\s*(from\s+|import\s+([\w. ]+,\s*)*)triton\b(?!_)"),
    ("cuda-nvrtc", r"kernelproof\.cuda|kernelproof import .*\bcuda\b"),
    ("cuda-inline", r"cuda_sources\s*="),
    ("cuda-inline", r"cpp_extension(?s:.*)\bload\s*\((?s:.*?)\.cu\b"),
    ("cpp-stable", r"\btorch_op\s*\("),
    ("cpp-c", r"\bc_library\s*\("),
    ("cpp-inline", r"\bload_inline\s*\(|cpp_extension"),
)


def load(where: str | Path) -> Candidate:
    """The candidate at ``where``: a Python file, or a folder with one of `candidate.py`,
    `model_new.py`, `solution.py`, or a single Python file, and its sources.

    Raises:
        CandidateNotFound: nothing there, or a folder without such a module.
    """
    path = Path(where).expanduser()
    if not str(where) or not path.exists():
        raise CandidateNotFound(
            f"no candidate {str(where)!r}: give a .py file with class ModelNew, "
            "or a folder that holds one"
        )
    path = path.resolve()
    if path.is_dir():
        entry, name, sources = _folder_entry(path), path.name, _folder_sources(path)
        folder = path
    elif path.suffix != ".py":
        # Its text would be kept as a source, and shown to whoever asks.
        raise CandidateNotFound(
            f"{str(where)!r} is no Python file: give a .py file with class ModelNew, or a folder "
            f"that holds one{_ALONE if path.suffix in ('.cu', '.ptx') else ''}"
        )
    else:
        entry, name, sources = path, path.stem, _file_sources(path)
        folder = path.parent
    try:
        contents = {str(source.relative_to(folder)): source.read_bytes() for source in sources}
    except OSError as error:
        raise CandidateNotFound(f"cannot read {error.filename}: {error.strerror}") from error
    return Candidate(
        name=name,
        path=str(entry),
        folder=str(folder),
        language=_language(entry, sources),
        digest=digest_of(contents),
        sources=tuple(str(source.relative_to(folder)) for source in sources),
    )


def digest_of(files: Mapping[str, bytes]) -> str:
    """The content hash of a candidate with these ``files`` (relative name -> bytes)."""
    digest = hashlib.sha256()
    for name in sorted(files, key=lambda n: PurePosixPath(n).parts):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()[:32]


def is_source(name: str) -> bool:
    """Whether a file of this name in a candidate's folder is one of its sources."""
    return Path(name).suffix in _SOURCE_SUFFIXES


def find(problem_path: str, where: str | Path) -> Path:
    """A path, or for a shipped operator the name of one of its kernels, such as ``cuda``."""
    path = Path(where)
    beside = Path(problem_path).parent / f"{where}.py"
    operator = Path(problem_path).with_name("problem.py").is_file()  # its further problems too
    if not path.exists() and operator and beside.is_file():
        return beside
    return path


def _folder_entry(folder: Path) -> Path:
    for name in ENTRY_NAMES:
        if (folder / name).is_file():
            return folder / name
    modules = sorted(folder.glob("*.py"))
    if len(modules) == 1:
        return modules[0]
    raise CandidateNotFound(
        f"{folder} holds {len(modules)} Python files; name the one with ModelNew `candidate.py`"
    )


def _folder_sources(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in _SOURCE_SUFFIXES and "__pycache__" not in path.parts and path.is_file()
    )


def _file_sources(path: Path) -> list[Path]:
    """The file, and the sources beside it that it, or a source that it names, mentions."""
    folder = path.parent
    beside = {p.name: p for p in folder.iterdir() if p.suffix in _SOURCE_SUFFIXES and p.is_file()}
    found = {path}
    queue = [path]
    while queue:
        text = queue.pop().read_text(errors="replace")
        for name, other in beside.items():
            pattern = _imports(other) if other.suffix == ".py" else re.escape(name)
            if other not in found and re.search(pattern, text):
                found.add(other)
                queue.append(other)
    return sorted(found)


def _language(entry: Path, sources: list[Path]) -> str:
    """What the entry says; where it says nothing, what it imports. An operator's package has more
    than one language."""
    own = entry.read_text(errors="replace")
    found = _language_of([own], sources)
    if found != "pytorch":
        return found
    modules = [path for path in sources if path.suffix == ".py" and path != entry]
    return _language_of(_imported(own, modules), sources)


def _language_of(texts: list[str], sources: list[Path]) -> str:
    for language, mark in _LANGUAGE_MARKS:
        if any(re.search(mark, text, re.MULTILINE) for text in texts):
            if language == "cpp-stable" and any(p.suffix == ".cu" for p in sources):
                return "cuda-stable"
            if language == "cpp-inline" and any(map(_gives_cuda_in_place, texts)):
                return "cuda-inline"
            return language
    return "pytorch"


def _gives_cuda_in_place(text: str) -> bool:
    """Whether a call of `load_inline(name, cpp_sources, cuda_sources)` does not name its third."""
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        return False
    third = [c.args[2] for c in calls if len(c.args) > 2 and "load_inline" in ast.unparse(c.func)]
    return any(ast.unparse(given) not in ("None", "''", "[]") for given in third)


def _imported(own: str, modules: list[Path]) -> list[str]:
    """What those of ``modules`` hold that the text ``own`` imports, be it by way of others."""
    texts, left = [own], list(modules)
    for text in texts:
        for module in [m for m in left if re.search(_imports(m), text)]:
            left.remove(module)
            texts.append(module.read_text(errors="replace"))
    return texts[1:]


def _imports(module: Path) -> str:
    name = module.parent.name if module.stem == "__init__" else module.stem
    return rf"(from|import)\s+([\w. ]+,\s*)*\S*\b{re.escape(name)}\b"
