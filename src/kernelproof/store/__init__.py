"""Stage 7: records, sessions and runs of suites in a database through SQLAlchemy; SQLite in the
data folder by default. The only package that talks SQL."""

from __future__ import annotations

from kernelproof.store.files import json_text, read_json
from kernelproof.store.records import Store
from kernelproof.store.sessions import Sessions
from kernelproof.store.suites import Suites

__all__ = ["Sessions", "Store", "Suites", "json_text", "read_json"]
