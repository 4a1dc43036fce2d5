"""Candidates as people and agents give them: a path, a word, or the text itself."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from kernelproof import candidate as candidates
from kernelproof.build.cache import content_key
from kernelproof.errors import UsageError
from kernelproof.home import home, keep


def placed(
    session: str, candidate: str | Path, files: Mapping[str, str] | None, name: str, problem: str
) -> Path:
    """The path of a candidate; text is written below the data folder first.

    Args:
        candidate: text has more than one line.
        files: relative name -> text of sources beside it; then the candidate is a folder.
        problem: path of the problem, whose kernels a word may name.

    Raises:
        UsageError: files for a path, or names that are none.
        CandidateNotFound: neither text nor the path of anything.
    """
    if "\n" not in str(candidate):
        if files:
            raise UsageError(
                "files go with a candidate that is given as text; a path is a folder that has them"
            )
        return candidates.find(problem, candidate)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError(f"the name {name!r} of a candidate is not a Python name")
    texts = {"candidate.py" if files else f"{name}.py": str(candidate), **(files or {})}
    for file in texts:
        pure = PurePosixPath(file)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise UsageError(f"the file name {file!r} leads out of the candidate's folder")
    if files and "candidate.py" in files:
        raise UsageError("files must not hold candidate.py: that is the candidate itself")
    try:
        key = content_key(name, *(part for item in sorted(texts.items()) for part in item))
        folder = home() / "sessions" / session / key
        root = folder / name if files else folder
        keep(root, texts)
    except (ValueError, FileExistsError, NotADirectoryError) as error:
        # No UTF-8, a zero byte in a name, a file that is a folder of another.
        raise UsageError(f"the candidate's texts are no files: {error}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UsageError(f"a name of the candidate's is too long: {error.filename}") from error
    return root if files else root / f"{name}.py"
