"""What all distributed tests share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text with some structure, the same for every test."""
    path = tmp_path_factory.mktemp("corpus") / "rhymes.txt"
    path.write_text("".join(f"{n} green bottles, and {n * n} more. " for n in range(2000)))
    return path


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tokenised corpora of tests stay out of the user's cache."""
    import os

    os.environ["TRAINMASTER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
