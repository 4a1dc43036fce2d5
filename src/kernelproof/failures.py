"""How a command ends that is not carried out: words on stderr, an object for ``--json``."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from kernelproof.errors import CandidateError, KernelproofError, UsageError


def told(error: Exception, given: Sequence[str] = ()) -> dict[str, Any]:
    """The object of an error, whose words go to stderr; ``exit_code`` is how the command ends.

    Args:
        given: the words of the command.
    """
    if hasattr(error, "format_message"):
        # Of the library that reads the command line; which module has the class depends on its
        # version.
        value = _refused(error, given)
        if value is not None:
            error.message += f" (given: {value!r})"  # type: ignore[attr-defined]
        error.show()  # type: ignore[attr-defined]
        return UsageError(error.format_message()).as_dict()
    words = _unwritable(error) if isinstance(error, OSError) else _store_words(error)
    if words is not None:
        error = UsageError(words)
    if not isinstance(error, KernelproofError):
        return _internal(error)
    if isinstance(error, CandidateError) and error.detail and "--json" not in given:
        print(error.detail, file=sys.stderr)
    print(f"kernelproof: {error}", file=sys.stderr)
    return error.as_dict()


def kept(keep: Callable[[], object]) -> int:
    """Keep records by ``keep``; the exit code where that fails, which stderr tells, else 0. What
    was judged may have taken an hour, and is shown all the same."""
    try:
        keep()
    except Exception as error:
        code: int = told(error)["exit_code"]
        print("kernelproof: what was judged is not in the store", file=sys.stderr)
        return code
    return 0


def _store_words(error: Exception) -> str | None:
    """Words for a database that does not do what it is asked for: full, locked, gone, broken."""
    if not type(error).__module__.startswith("sqlalchemy."):
        return None
    first = str(error).partition("\n")[0]
    return f"the record store: {first}; --store or KERNELPROOF_STORE names another"


def _refused(error: Exception, given: Sequence[str]) -> str | None:
    """The value of the option that ``error`` is about, which does not name it; None for any other
    error."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for at, word in enumerate(given):
        name, equals, value = word.partition("=")
        if name in names and name.startswith("-"):
            return value if equals else next(iter(given[at + 1 :]), None)
    return None


def _unwritable(error: OSError) -> str | None:
    """Words for a folder or disk that takes no files; None for any other error."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
        return None
    from kernelproof.home import home

    return (
        f"cannot write {error.filename or 'a file'}: {error.strerror}; the data folder is "
        f"{home()}, and KERNELPROOF_HOME names another"
    )


def _internal(error: Exception) -> dict[str, Any]:
    """Not foreseen: our own fault, which must not look like the candidate's."""
    traceback.print_exception(error)
    print("kernelproof: an internal error; please report it with the above", file=sys.stderr)
    return KernelproofError(f"an internal error: {type(error).__name__}: {error}").as_dict()
