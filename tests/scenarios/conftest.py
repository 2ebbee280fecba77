"""One ring for the stories that leave it whole, and the undisturbed twin that they are compared
with.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.ring import Ring, running, tiny


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text that every machine makes the same."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    words = ["the", "slow", "node", "waits", "for", "its", "peer", "and", "says", "why"]
    state, text = 1, []
    for _ in range(40_000):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        text.append(words[(state >> 16) % len(words)])
    path.write_text(" ".join(text))
    return path


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A whole Trainmaster with four slots on one node."""
    with running(tmp_path_factory.mktemp("ring") / "home") as up:
        yield up


@pytest.fixture(scope="session")
def twin(ring: Ring, corpus: Path) -> dict[str, object]:
    """The run that nothing happened to: its id, its weights and its losses."""
    run = ring.submit(tiny("twin", corpus))
    done = ring.wait_for(run, "succeeded")
    return {"id": run, "weights_sha256": done["weights_sha256"], "losses": ring.losses(run)}
