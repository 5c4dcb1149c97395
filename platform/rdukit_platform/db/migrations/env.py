"""Alembic's entry: migrations run on the connection, and in the transaction, that ``migrate`` hands over."""

from alembic import context

from rdukit_platform.db.models import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
context.run_migrations()
