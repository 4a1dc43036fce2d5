"""Many candidates of one problem: each gets its status, whatever becomes of the others."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelproof.candidate import ENTRY_NAMES
from kernelproof.errors import CandidateNotFound, UsageError
from kernelproof.types import Record


def candidates_in(where: str | Path) -> tuple[list[Path], list[Path]] | None:
    """The candidates of a folder, and the Python files in it that are none.

    None where ``where`` is not a folder of candidates but one candidate, or nothing: a folder with
    `candidate.py` (or another name of an entry), or with a single module and no candidate below.
    Candidates are modules with the word ModelNew and folders that are one candidate each; names
    that begin with "." or "_" are left out.
    """
    folder = Path(where).expanduser()
    if not folder.is_dir() or _is_own(folder):
        return None
    inside = [p for p in sorted(folder.iterdir()) if not p.name.startswith((".", "_"))]
    modules = [p for p in inside if p.is_file() and p.suffix == ".py"]
    folders = [p for p in inside if p.is_dir() and (_is_own(p) or _names_model(p))]
    if len(modules) == 1 and not folders:
        return None
    named = [p for p in modules if "ModelNew" in p.read_text(errors="replace")]
    if not named and not folders:
        return None
    return sorted([*named, *folders]), [p for p in modules if p not in named]


def judge_each(
    paths: Sequence[Path],
    others: Sequence[Path],
    judge: Callable[[Path], Record],
    keep: Callable[[Record], None],
) -> tuple[list[Record], int]:
    """Judge ``paths`` one after the other and keep each record at once; says on stderr what came
    of each, and that ``others`` were left out.

    Returns the records, and how many candidates have none: gone since, or by a fault of ours.

    Raises:
        UsageError: the problem cannot be read or run, or an option is wrong: true of every one.
    """
    for path in others:
        print(f"{path.name}: left out, there is no ModelNew in it", file=sys.stderr)
    records: list[Record] = []
    for number, path in enumerate(paths, 1):
        try:
            record = judge(path)
        except CandidateNotFound as error:
            print(f"{path.name}: no status: {error}", file=sys.stderr)
            continue
        except UsageError:
            raise
        except Exception:
            # Not foreseen, and it must not cost the other candidates their status.
            print(f"{path.name}: no status, by a fault of kernelproof", file=sys.stderr)
            traceback.print_exc()
            continue
        keep(record)
        records.append(record)
        print(f"[{number}/{len(paths)}] {path.name}: {record.status}", file=sys.stderr)
    return records, len(paths) - len(records)


def _is_own(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ENTRY_NAMES)


def _names_model(folder: Path) -> bool:
    modules = list(folder.glob("*.py"))
    return len(modules) == 1 and "ModelNew" in modules[0].read_text(errors="replace")
