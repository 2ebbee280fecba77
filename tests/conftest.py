"""Plumbing of the whole suite: service fixtures, and markers given by folder and by fixture."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on the machine's load; no test is about that.
settings.register_profile("trainmaster", deadline=None)
settings.load_profile("trainmaster")

pytest_plugins = [
    "tests.services.alertmanager",
    "tests.services.postgres",
    "tests.services.prometheus",
    "tests.services.s3",
]

TESTS = Path(__file__).parent
MARK_OF_FOLDER = {"distributed": "distributed", "scenarios": "scenario", "browser": "browser"}
MARK_OF_FIXTURE = {
    "postgres_cluster": "postgres",
    "own_postgres_cluster": "postgres",
    "prometheus": "prometheus",
    "s3_endpoint": "s3",
}


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark each test by where it lives and what it asks for, so that no author can forget to."""
    for item in items:
        folder, *rest = item.path.relative_to(TESTS).parts
        if folder == "integration" and len(rest) == 1:
            # Those in folders below it talk to one side, in this process.
            item.add_marker("processes")
        if folder in MARK_OF_FOLDER:
            item.add_marker(MARK_OF_FOLDER[folder])
        for fixture, mark in MARK_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
