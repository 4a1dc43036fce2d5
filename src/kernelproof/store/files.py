"""Records as JSON files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from kernelproof.errors import UsageError
from kernelproof.types import Record


def json_text(records: Sequence[Record]) -> str:
    """``records`` as a JSON list."""
    body = ",\n".join(record.model_dump_json(indent=1) for record in records)
    return f"[{body}]\n"


def read_json(path: Path) -> list[Record]:
    """Records of a file with `json_text` or what ``--json`` prints. Raises UsageError if it has
    none."""
    try:
        data = json.loads(path.read_text())
        if isinstance(data, dict) and "records" in data:
            data = data["records"]
        items = data if isinstance(data, list) else [data]
        # `--json` repeats these two at the top for tools; they are not fields of a record.
        plain = [{k: v for k, v in item.items() if k not in ("status", "checks")} for item in items]
        return [Record.model_validate(item) for item in plain]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError, ValidationError) as error:
        text = str(error).splitlines()[0]
        raise UsageError(f"{path} holds no kernelproof records: {text}") from error
