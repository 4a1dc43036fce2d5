"""Stage 7: records and sessions in a database through SQLAlchemy; SQLite in the data folder by
default. The only package that talks SQL."""

from __future__ import annotations

from kernelproof.store.files import read_json, write_json
from kernelproof.store.records import Store
from kernelproof.store.sessions import Sessions

__all__ = ["Sessions", "Store", "read_json", "write_json"]
