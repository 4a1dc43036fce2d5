"""Runs of suites and their results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "suite_runs",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("suite", sa.String(200), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_suite_runs_created", "suite_runs", ["created"])
    op.create_table(
        "suite_results",
        sa.Column("run", sa.String(40), sa.ForeignKey("suite_runs.id"), primary_key=True),
        sa.Column("item", sa.String(400), primary_key=True),
        sa.Column("digest", sa.String(40), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("device", sa.String(200), nullable=False),
        sa.Column("record", sa.String(40), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
