"""The file of a proof: its canonical bytes, its hash, reading and writing.

The bytes are JSON with sorted keys, an indent of one space, ASCII only, and one newline at the end:
one value has one form, so that every changed byte shows, white space too. ``sha256`` is the hash
over the same form of everything else. It tells that a file is as it was written, not who wrote it:
whoever makes a whole new proof can give it a new hash, and then only running it again tells.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelproof.errors import UsageError
from kernelproof.types import Proof

_HASH = "sha256"


@dataclasses.dataclass(frozen=True)
class Read:
    """A proof's file as it was found. ``edited``: how it is not as it was written, "" where it is.
    ``proof``: None where it cannot be read, for which ``unreadable`` is the reason."""

    sha256: str
    edited: str
    proof: Proof | None
    unreadable: str = ""


def canonical(value: Any) -> bytes:
    """The one form of a JSON value.

    Raises:
        ValueError: a number that is not finite, which JSON does not have.
    """
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode() + b"\n"


def digest(body: dict[str, Any]) -> str:
    """The hash of a proof's ``body``, which may hold one already."""
    bare = {key: value for key, value in body.items() if key != _HASH}
    return hashlib.sha256(canonical(bare)).hexdigest()


def write(proof: Proof, path: Path) -> str:
    """Write ``proof`` and return its hash. The file is whole or not there."""
    body = json.loads(proof.model_dump_json())
    body[_HASH] = digest(body)
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(canonical(body))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}; -o takes a file") from error
    return str(body[_HASH])


def read(path: Path) -> Read:
    """Read a proof's file and compare it with its hash.

    Raises:
        UsageError: no such file, or it never was a proof.
    """
    try:
        found = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        body = json.loads(found)
    except ValueError as error:
        if b'"sha256"' in found and b'"kernelproof"' in found:
            return Read("", f"it is no JSON any more: {str(error)[:200]}", None)
        raise UsageError(
            f"{path} is no proof, it is not even JSON; `kernelproof prove` writes one"
        ) from error
    if not isinstance(body, dict) or not {"record", "kernelproof", "format"} & set(body):
        raise UsageError(
            f"{path} is JSON but no proof; `kernelproof prove` writes one, and `kernelproof "
            "report` reads records"
        )
    edited = _edited(found, body)
    kept = str(body.get(_HASH, ""))
    fields = {key: value for key, value in body.items() if key != _HASH}
    try:
        return Read(kept, edited, Proof.model_validate_json(json.dumps(fields)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        maker = str(body.get("kernelproof"))[:40]
        text = f"made by kernelproof {maker}, and not readable here: {where}: {first['msg']}"
        return Read(kept, edited, None, text)


def _edited(found: bytes, body: dict[str, Any]) -> str:
    try:
        again = canonical(body)
    except ValueError as error:
        return f"it holds a value that no proof has: {error}"
    if again != found:
        at = next((i for i, (a, b) in enumerate(zip(again, found, strict=False)) if a != b), None)
        at = min(len(again), len(found)) if at is None else at
        line = found[:at].count(b"\n") + 1
        return f"byte {at} (line {line}) is not what a proof's file has there"
    if body.get(_HASH) != digest(body):
        return (
            f"its content has the hash {digest(body)[:16]}.. and it says "
            f"{str(body.get(_HASH))[:16]}.."
        )
    return ""
