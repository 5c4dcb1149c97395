"""Jobs and sweeps record their submitters."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TABLES = ("jobs", "sweeps")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("submitted_by", sa.String(length=32), nullable=True))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "submitted_by")
