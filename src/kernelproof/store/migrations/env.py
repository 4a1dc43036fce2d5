"""Run by alembic, inside the transaction of `store.upgrade`."""

from __future__ import annotations

from alembic import context

from kernelproof.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
