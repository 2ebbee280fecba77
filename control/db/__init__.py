"""SQL: facts in, snapshots out, decisions applied. The same code and the same tests on SQLite and
PostgreSQL.
"""
