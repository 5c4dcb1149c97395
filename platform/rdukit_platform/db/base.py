"""Base of all tables: names of constraints, types of columns."""

from typing import ClassVar

from sqlalchemy import JSON, BigInteger, Double, Integer, MetaData, Table
from sqlalchemy.orm import DeclarativeBase

#: Counts of bytes: PostgreSQL's integer ends at 2 GiB.
BYTES = BigInteger().with_variant(Integer, "sqlite")

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Common to all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[object, object]] = {
        dict[str, object]: JSON,
        dict[str, str]: JSON,
        list[str]: JSON,
        list[object]: JSON,
        list[dict[str, object]]: JSON,
        list[list[float]]: JSON,
        float: Double,
    }


def table_of(row: type[Base]) -> Table:
    """Return the table of a class of rows, for statements that bypass the session's objects."""
    return row.metadata.tables[row.__tablename__]
