"""Control planes on one PostgreSQL are killed one after the other, at moments that nobody chose,
while nodes train and a person steers: every fact is there once, every request was acted on once,
and every run succeeds. `python -m tests.campaigns.kill_control` does it for longer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns.kill_control import Campaign, run_campaign
from tests.services.postgres import PostgresCluster


@pytest.fixture
def database_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    name = postgres_cluster.create_database()
    yield postgres_cluster.url(name)
    postgres_cluster.drop_database(name)


def test_control_planes_are_killed_and_nothing_is_lost_or_done_twice(
    database_url: str, tmp_path: Path
) -> None:
    random.seed(7)
    campaign = Campaign(
        seconds=6,
        at_least=3,
        real=2,
        light=2,
        at_once=2,
        light_steps=100,
        real_steps=60,
        every_s=1.5,
        halts=False,
    )
    outcome = run_campaign(tmp_path, database_url, campaign)
    print(outcome.counts)
    assert outcome.wrong == []
    assert sum(outcome.counts["ended"].values()) >= campaign.at_least
    assert outcome.counts["terms"] >= 2
    assert outcome.counts["runs"]["real"] >= 1
    assert outcome.counts["runs"]["light"] >= 2
