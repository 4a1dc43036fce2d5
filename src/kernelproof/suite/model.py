"""A suite: problems with candidates, in the order in which they are judged."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from kernelproof.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Item:
    """One candidate of one problem.

    Args:
        problem: what `pipeline.judge` takes: a file in KernelBench's form, or a folder whose
            `problem.py` is one. It travels to other machines alone, so a folder holds all that it
            needs; a format of another form writes such a folder below the data folder.
        candidate: a module with ModelNew or a folder with one; None where the suite has none for
            this problem, which counts as not correct.
        name: unique in the suite, such as "level1/23".
        category: what results are grouped by, such as "level1"; empty for none.
        sample: which of the candidates of its problem, from 0.
        options: fields of `pipeline.Options` that are other for this item, as JSON has them; and
            under "compat" what the format's own verdict needs.
    """

    problem: Path
    candidate: Path | None
    name: str
    category: str = ""
    sample: int = 0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def digest(self) -> str:
        """32 hexadecimal digits of all that is judged here: the files of problem and candidate, and
        the options."""
        total = hashlib.sha256(json.dumps(self.options, sort_keys=True).encode())
        for where in (self.problem, self.candidate):
            for name, content in files_of(where).items() if where is not None else ():
                total.update(f"{name}\0{len(content)}\0".encode() + content)
            total.update(b"\1")
        return total.hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Suite:
    """``format``: the name of the format that it was read from. Raises UsageError where two items
    have one name."""

    name: str
    format: str
    items: list[Item]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for item in self.items:
            if item.name in seen:
                raise UsageError(f"suite {self.name} has two items with the name {item.name!r}")
            seen.add(item.name)


def files_of(where: Path) -> dict[str, bytes]:
    """Relative name -> content of a file, with the sources beside it that it mentions, or of all in
    a folder but what Python and editors leave there."""
    if where.is_dir():
        found = sorted(p for p in where.rglob("*") if p.is_file())
        return {
            str(p.relative_to(where)): p.read_bytes()
            for p in found
            if "__pycache__" not in p.parts and not p.name.startswith(".")
        }
    from kernelproof import candidate

    folder = where.parent
    return {name: (folder / name).read_bytes() for name in candidate.load(where).sources}
