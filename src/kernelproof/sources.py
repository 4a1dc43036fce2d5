"""The files of a problem or a candidate as values, and values as files again."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path, PurePosixPath

from kernelproof import candidate as candidates
from kernelproof.errors import CandidateNotFound, UsageError
from kernelproof.types import Candidate, Problem, Sources

# Of one candidate; what is larger is no source.
MOST_BYTES = 16 << 20
_OPERATORS = Path(__file__).parent / "ops"


def of_problem(problem: Problem) -> Sources:
    """The problem's one file."""
    path = Path(problem.path)
    files, binary = _contents([path], path.parent)
    return Sources(
        name=problem.name, digest=problem.digest, entry=path.name, files=files, binary=binary
    )


def of_candidate(candidate: Candidate) -> Sources:
    """All files of a folder that is a candidate, else the module and the sources it names.

    Raises:
        UsageError: more than 16 MiB.
    """
    folder, entry = Path(candidate.folder), Path(candidate.path)
    is_folder = _is_folder(candidate)
    paths = [folder / name for name in candidate.sources]
    if is_folder:
        inside = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        paths = sorted({*paths, *inside})
    size = sum(path.stat().st_size for path in paths)
    if size > MOST_BYTES:
        raise UsageError(
            f"{folder} holds {size} bytes in {len(paths)} files; a candidate may have "
            f"{MOST_BYTES}: move what is no source out of its folder"
        )
    files, binary = _contents(paths, folder)
    shipped = ""
    if _OPERATORS in entry.resolve().parents:
        shipped = entry.resolve().relative_to(_OPERATORS).as_posix()
    return Sources(
        name=candidate.name, digest=candidate.digest, entry=entry.name, files=files, binary=binary,
        is_folder=is_folder, shipped=shipped,
    )  # fmt: skip


def installed(sources: Sources) -> tuple[Path, str]:
    """Where a shipped operator's kernel lies in this package, and how its sources differ from
    those recorded: "" where they do not."""
    path = _OPERATORS / sources.shipped
    if not path.is_file():
        return path, f"this kernelproof has no kernel ops/{sources.shipped}"
    here = of_candidate(candidates.load(path))
    names = sorted(here.files.keys() | sources.files.keys())
    changed = [n for n in names if here.files.get(n) != sources.files.get(n)]
    if changed or here.binary != sources.binary:
        return path, f"this kernelproof has another {', '.join(changed)} in ops/{sources.shipped}"
    return path, ""


def lay(sources: Sources, folder: Path) -> Path:
    """Write the files below ``folder``; the path by which the problem or candidate is found there.

    Raises:
        UsageError: a file name that leads out of the folder, or that there cannot be.
    """
    root = folder / sources.name if sources.is_folder else folder
    if Path(sources.name).name != sources.name or sources.name in ("", ".", ".."):
        raise UsageError(f"the name {sources.name!r} is no plain name")
    for name in (*sources.files, *sources.binary, sources.entry):
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise UsageError(f"the file name {name!r} leads out of the candidate's folder")
    try:
        for name, text in sources.files.items():
            _parented(root / name).write_bytes(text.encode())
        for name, data in sources.binary.items():
            _parented(root / name).write_bytes(base64.b64decode(data))
    except (ValueError, FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"the sources are no files: {error}") from error
    return root if sources.is_folder else root / sources.entry


def fits(sources: Sources, problem: bool) -> str:
    """How the files do not have the digest that the sources claim; "" where they have it."""
    if problem:
        text = sources.files.get(sources.entry)
        if text is None:
            return f"it has no file {sources.entry!r}"
        found = hashlib.sha256(text.encode()).hexdigest()[: len(sources.digest)]
        return "" if found == sources.digest else f"its file has the digest {found[:12]}"
    given = {name: text.encode() for name, text in sources.files.items()}
    given |= {name: base64.b64decode(data) for name, data in sources.binary.items()}
    if sources.is_folder:
        given = {name: data for name, data in given.items() if candidates.is_source(name)}
    found = candidates.digest_of(given)
    return "" if found == sources.digest else f"its files have the digest {found[:12]}"


def _is_folder(candidate: Candidate) -> bool:
    """Whether the candidate is its folder, and not one file in a folder of its name."""
    if Path(candidate.folder).name != candidate.name:
        return False
    try:
        return candidates.load(candidate.folder).digest == candidate.digest
    except CandidateNotFound:
        return False


def _contents(paths: list[Path], folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    files: dict[str, str] = {}
    binary: dict[str, str] = {}
    for path in paths:
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        try:
            files[name] = data.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(data).decode()
    return files, binary


def _parented(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
