"""The private cluster: each test has a database of its own, and a template is filled once."""

import sqlalchemy

from tests.services.postgres import PostgresCluster


def run(url: str, statement: str) -> list[tuple[object, ...]]:
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(sqlalchemy.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()


def test_a_test_writes_into_an_empty_database_of_its_own(
    postgres_url: str, postgres_cluster: PostgresCluster
) -> None:
    run(postgres_url, "CREATE TABLE runs (id int)")
    neighbour = postgres_cluster.create_database()
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert run(postgres_url, tables) == [("runs",)]
    assert run(postgres_cluster.url(neighbour), tables) == []
    postgres_cluster.drop_database(neighbour)


def test_a_template_is_filled_once_and_copied(postgres_cluster: PostgresCluster) -> None:
    filled: list[str] = []

    def fill(url: str) -> None:
        filled.append(url)
        run(url, "CREATE TABLE nodes AS SELECT 7 AS slots")

    for _ in range(2):
        template = postgres_cluster.template("services-test", fill)
        copy = postgres_cluster.create_database(template=template)
        assert run(postgres_cluster.url(copy), "SELECT slots FROM nodes") == [(7,)]
        postgres_cluster.drop_database(copy)
    assert len(filled) == 1
