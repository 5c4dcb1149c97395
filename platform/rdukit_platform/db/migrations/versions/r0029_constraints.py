"""Jobs ask for nodes by labels, and administrators give nodes labels."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("constraint", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("nodes", sa.Column("given_labels", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("nodes", "given_labels")
    op.drop_column("jobs", "constraint")
