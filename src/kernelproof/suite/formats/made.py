"""Problems and candidates that are written from another form into kernelproof's own.

They lie below the data folder under the hash of their text, so that loading a suite twice gives the
same paths, and are made of the user's own checkout: nothing of a public suite comes with us.
"""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelproof.build.cache import content_key
from kernelproof.errors import UsageError
from kernelproof.home import home, keep


def folder(format: str, name: str, files: Mapping[str, str]) -> Path:
    """A folder called ``name`` with these ``files`` (relative name -> text)."""
    key = content_key(format, name, *(part for item in sorted(files.items()) for part in item))
    root = home() / "suites" / format / key / plain(name)
    keep(root, files)
    return root


def problem(format: str, name: str, text: str) -> Path:
    """The folder of a problem with this text. Nothing but its `problem.py` is in it, which is what
    a candidate may not read."""
    return folder(format, name, {"problem.py": text})


def unsupported(format: str, name: str, why: str) -> Path:
    """A problem that cannot be judged and says ``why``, so that its item has a status."""
    return problem(format, name, f"raise NotImplementedError({f'unsupported: {why}'!r})\n")


def itself(source: Path) -> Path:
    """The problem ``source``, in KernelBench's form, as a candidate of its own."""
    file = source / "problem.py" if source.is_dir() else source
    text = file.read_text().rstrip()
    return folder("itself", source.stem, {"candidate.py": f"{text}\n\n\nModelNew = Model\n"})


def plain(name: str) -> str:
    """``name`` as the name of a file."""
    return re.sub(r"[^\w.+-]+", "_", name)


def literal(value: Any) -> str:
    """``value`` as Python text."""
    return pprint.pformat(value, width=100, sort_dicts=False)


def yaml_of(path: Path) -> dict[str, Any]:
    """The keys of a YAML file. Raises UsageError where it has none, or PyYAML is missing."""
    try:
        import yaml
    except ImportError:
        text = f"{path.name} needs PyYAML: pip install 'kernelproof[suites]'"
        raise UsageError(text) from None
    try:
        found = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no keys")
    return found
