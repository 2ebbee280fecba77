"""What all tables share: the metadata, and the types of ids, words and row numbers."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Integer, MetaData, String

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column that is exactly INTEGER.
ROW_NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")
ID: Final = String(200)
NODE_ID: Final = String(63)
WORD: Final = String(40)
ATTEMPT_KEY: Final = ("attempts.run", "attempts.generation")
"""What a row that belongs to one generation refers to."""
