"""Import a Python file by path under a name of its own; import much at once."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

_counter = itertools.count()


def import_file(path: Path, kind: str, tree: ast.Module | None = None) -> ModuleType:
    """Execute ``path`` as a fresh module; ``kind`` begins its name. Errors pass through.

    ``tree`` is executed in place of the file's own text where it is given.
    """
    name = f"kernelproof_{kind}_{path.stem}_{next(_counter)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # dataclasses, pickling, torch.jit and triton look a module up by its name.
    sys.modules[name] = module
    try:
        if tree is None:
            spec.loader.exec_module(module)
        else:
            exec(compile(tree, str(path), "exec"), vars(module))
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def imports(names: Sequence[str]) -> None:
    """Import these modules."""
    with uncollected():
        for name in names:
            importlib.import_module(name)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Inside, no cycles are looked for: while torch is imported, whose objects stay, looking at all
    of them again and again is a fifth of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
