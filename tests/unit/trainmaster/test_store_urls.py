"""Which URLs can be a store's, by their form alone."""

from __future__ import annotations

import pytest

from trainmaster.storage import url_problem


@pytest.mark.parametrize("url", ["file:///proc/x", "file:////proc/x", "file:///./sys/fs/x"])
def test_what_the_kernel_keeps_is_no_store(url: str) -> None:
    assert "nothing can be stored there" in str(url_problem(url))


@pytest.mark.parametrize("url", ["file:///processed", "file:///data/proc", "file:///dev/shm/x"])
def test_other_folders_may_be(url: str) -> None:
    assert url_problem(url) is None
