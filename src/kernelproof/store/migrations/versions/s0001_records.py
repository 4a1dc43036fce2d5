"""Records, as kernelproof 0.1.0 made the table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "records",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("problem", sa.String(200), nullable=False),
        sa.Column("candidate", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(40), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("device", sa.String(100), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    for column in ("created", "problem", "digest", "status"):
        op.create_index(f"ix_records_{column}", "records", [column])
