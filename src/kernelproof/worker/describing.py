"""An error in a worker, as its parent hears of it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from kernelproof.errors import CandidateError, CompileError


def described(error: BaseException, path: str) -> dict[str, Any]:
    """An error as the parent reports it: status, one line, and the frames of the user's files."""
    status = "crash"
    detail = ""
    text = _text(error)
    message = f"{type(error).__name__}: {text}"
    if isinstance(error, CandidateError):
        status, message, detail = error.status, error.message, error.detail
    elif isinstance(error, SyntaxError):
        status = CompileError.status
        line = f":{error.lineno}" if error.lineno else ""
        message = f"{Path(error.filename or path).name}{line}: {error.msg}"
        detail = (error.text or "").rstrip()
    elif _is_of_triton(error):
        # As it says it: the kernel's lines, a mark below the place, and last what is wrong.
        status, detail = CompileError.status, _user_traceback(error, path)
        message = f"{Path(path).name}: Triton does not compile it: {str(error).splitlines()[-1]}"
    elif isinstance(error, PermissionError):
        message += ". A candidate may read its own folder and what is installed, and write to "
        message += "tempfile.gettempdir(); see docs/trust.md"
    elif isinstance(error, SystemExit):
        message = f"the candidate called sys.exit({text})"
    if not detail and not isinstance(error, CandidateError):
        detail = _user_traceback(error, path)
    return {"error": message, "status": status, "detail": detail}


def _is_of_triton(error: BaseException) -> bool:
    """Whether Triton's compiler raised it; Triton itself may not be installed."""
    names = {c.__name__ for c in type(error).__mro__ if c.__module__.startswith("triton.")}
    return bool(names & {"CompilationError", "PTXASError"})


def _user_traceback(error: BaseException, path: str) -> str:
    folder = str(Path(path).parent) if path else ""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if folder and f.filename.startswith(folder)
    ]
    if not frames:
        frames = traceback.extract_tb(error.__traceback__)[-1:]
    lines = [f"{Path(f.filename).name}:{f.lineno}: in {f.name}: {f.line}" for f in frames]
    return "\n".join([*lines, f"{type(error).__name__}: {_text(error)}"])


def _text(error: BaseException) -> str:
    """What it says; a class of the candidate's may raise when it is asked."""
    try:
        return str(error)
    except BaseException as another:
        return f"(no text: its __str__ raises {type(another).__name__})"
