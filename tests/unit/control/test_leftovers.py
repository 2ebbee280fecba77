"""What in a run's store belongs to nobody."""

from __future__ import annotations

from datetime import timedelta

import pytest

from control.checkpoints.leftovers import Folder, Writer, leftovers
from tests.fakes.snapshots import NOW

LONG_AGO, JUST_NOW = NOW - timedelta(days=2), NOW - timedelta(minutes=5)
DEAD, LIVING = Writer(JUST_NOW, all_exited=True), Writer(None, all_exited=False)
UNSEEN = Writer(JUST_NOW, all_exited=False)
LOST = Writer(LONG_AGO, all_exited=False)


def goes(folder: Folder, writer: Writer | None, state: str | None = None) -> bool:
    states = {} if state is None else {folder.name: state}
    writers = {} if writer is None else {1: writer}
    return leftovers([folder], states=states, writers=writers, now=NOW) == [folder]


@pytest.mark.parametrize(
    ("writer", "expected"),
    [(DEAD, True), (LOST, True), (UNSEEN, False), (LIVING, False), (None, False)],
)
def test_a_save_that_was_cut_short_goes_once_nobody_can_write_to_it(
    writer: Writer | None, expected: bool
) -> None:
    assert goes(Folder("g1-step20", committed=False, bytes=5), writer) is expected


@pytest.mark.parametrize("state", ["committed", "trusted", "quarantined"])
def test_what_sql_knows_stays_even_where_its_manifest_is_gone(state: str) -> None:
    assert not goes(Folder("g1-step20", committed=False, bytes=5), DEAD, state)
    assert not goes(Folder("g1-step20", committed=True, bytes=5), DEAD, state)


@pytest.mark.parametrize("writer", [DEAD, LIVING])
def test_what_is_retired_and_still_there_goes(writer: Writer) -> None:
    for committed in (True, False):
        assert goes(Folder("g1-step20", committed, 5), writer, "retired")


def test_a_whole_checkpoint_that_nobody_told_of_and_what_is_not_ours_stay() -> None:
    assert not goes(Folder("g1-step20", committed=True, bytes=5), DEAD)
    assert not goes(Folder("lost+found", committed=False, bytes=5), DEAD)
