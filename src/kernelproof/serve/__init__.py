"""`kernelproof serve`: board, problems, records and sessions of a store in a browser.

Pages are made here from the store at each request, with the templates and the style of the report;
`pages` has one function for each and `templates` one file. Read-only, unless candidates are taken:
then `calls` carries them out with the functions of `session`.
"""

from __future__ import annotations

from kernelproof.serve.app import application
from kernelproof.serve.guard import Access
from kernelproof.serve.run import run

__all__ = ["Access", "application", "run"]
