"""The walls round the boxes of a worker's jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("services", sa.Column("walls", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("services") as batch:
        batch.drop_column("walls")
