"""What all HTML pages share: the templates beside this module, and the plotting library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelproof.report import pictures


def template(name: str, *folders: Path) -> Any:
    """A template of ``folders`` or this folder; it escapes whatever is put in, unless that is
    marked as markup."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, Path(__file__).parent], encoding="utf-8"),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(name)


def markup(text: str) -> Any:
    """``text`` as it is: for the plotting library and charts only."""
    import markupsafe

    return markupsafe.Markup(text)


def library(drawn: bool) -> Any:
    """The plotting library (about 5 MB) as markup where a page has a drawing that needs it."""
    return markup(pictures.plotly("offline").get_plotlyjs() if drawn else "")
