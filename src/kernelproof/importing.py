"""Import a Python file by path under a name of its own."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

_counter = itertools.count()


def import_file(path: Path, kind: str) -> ModuleType:
    """Execute ``path`` as a fresh module; ``kind`` begins its name. Errors pass through."""
    name = f"kernelproof_{kind}_{path.stem}_{next(_counter)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # dataclasses, pickling, torch.jit and triton look a module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
