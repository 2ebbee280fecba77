"""A clock that follows another: never backwards, whatever the wall clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from control.clock import BELIEVED, Reading, SteadyClock
from trainmaster.errors import UnavailableError

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class World:
    """A wall clock that may be set, and seconds that pass whatever it shows.

    Attributes:
        asking_s: how long it takes to read the wall clock.
    """

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.set_s = 0.0
        self.asking_s = 0.0
        self.written: datetime | None = None
        self.away = False

    def monotonic(self) -> float:
        return self.passed_s

    @property
    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.passed_s + self.set_s)

    def read(self) -> Reading:
        if self.away:
            raise UnavailableError("the database is away")
        self.passed_s += self.asking_s / 2
        told = Reading(self.wall, self.written)
        self.passed_s += self.asking_s / 2
        return told

    def clock(self) -> SteadyClock:
        return SteadyClock(self.read, monotonic=self.monotonic)


def seconds(clock: SteadyClock) -> float:
    return (clock.now() - NOON).total_seconds()


def test_between_looks_a_wall_clock_that_is_set_changes_nothing():
    world = World()
    clock = world.clock()
    world.set_s = 300
    world.passed_s = 2
    assert seconds(clock) == 2


def test_a_step_forwards_is_followed_and_told_before_it_is_shown():
    world = World()
    clock = world.clock()
    told: list[tuple[datetime, datetime]] = []
    clock.when_stepped(lambda now: told.append((now, clock.now())))
    world.set_s, world.passed_s = 300, 2
    clock.refresh()
    assert seconds(clock) == 302
    assert told == [(NOON + timedelta(seconds=302), NOON + timedelta(seconds=2))]


def test_a_step_back_is_made_up_for_at_half_speed_and_warned_of_once(caplog):
    world = World()
    world.set_s = 300
    clock = world.clock()
    told: list[datetime] = []
    clock.when_stepped(told.append)
    world.set_s = 0
    for _ in range(200):
        world.passed_s += 3
        clock.refresh()
    assert seconds(clock) == 600 + 1.5, "300 s ahead, less half of 597 s"
    for _ in range(3):
        world.passed_s += 3
        clock.refresh()
    assert clock.now() == world.wall
    assert told == []
    assert [each.getMessage() for each in caplog.records] == [
        "time went back by 300.0 s; going slow until it is reached"
    ]


def test_drift_is_followed_without_a_word_and_the_way_there_is_not_taken_for_it():
    world = World()
    world.asking_s = 0.08
    clock = world.clock()
    told: list[datetime] = []
    clock.when_stepped(told.append)
    before = clock.now()
    clock.refresh()
    assert clock.now() - before == timedelta(seconds=0.08), "nothing but the time it took"
    world.set_s = 0.2
    clock.refresh()
    assert clock.now() == world.wall
    assert told == []


def test_a_reading_that_took_long_says_nothing():
    world = World()
    clock = world.clock()
    world.set_s, world.asking_s = 300, 5
    clock.refresh()
    assert seconds(clock) == 5


def test_who_begins_after_a_step_back_begins_where_the_others_are():
    world = World()
    world.written = NOON + timedelta(seconds=300)
    clock = world.clock()
    assert seconds(clock) == 300
    world.passed_s = 3
    clock.refresh()
    world.passed_s = 6
    assert seconds(clock) == 304.5, "it goes slow, as theirs do"


def test_one_that_fell_behind_the_others_catches_up_and_tells():
    world = World()
    clock = world.clock()
    told: list[datetime] = []
    clock.when_stepped(told.append)
    world.written = NOON + timedelta(seconds=300)
    clock.refresh()
    assert seconds(clock) == 300
    assert len(told) == 1


def test_a_process_that_was_halted_tells_so_before_it_says_what_time_it_is():
    world = World()
    clock = world.clock()
    told: list[datetime] = []
    clock.when_stepped(told.append)
    for _ in range(10):
        world.passed_s += 4
        clock.now()
    assert told == []
    world.passed_s += 60
    assert [clock.now()] == told
    world.passed_s += 1
    clock.now()
    assert len(told) == 1


def test_what_is_written_absurdly_far_ahead_is_not_believed():
    world = World()
    world.written = NOON + BELIEVED + timedelta(seconds=1)
    assert seconds(world.clock()) == 0


def test_while_the_source_is_away_it_goes_on():
    world = World()
    clock = world.clock()
    world.away, world.passed_s = True, 50
    assert seconds(clock) == 50


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.floats(-1000, 1000), st.floats(0, 2), st.booleans()),
        max_size=40,
    )
)
def test_it_never_goes_back_and_an_instant_never_takes_less_than_half(
    happenings: list[tuple[float, float, float, bool]],
):
    world = World()
    clock = world.clock()
    for passes_s, set_s, asking_s, looks in happenings:
        before, began_s = clock.now(), world.passed_s
        world.passed_s += passes_s
        world.set_s, world.asking_s = set_s, asking_s
        if looks:
            clock.refresh()
        shown_s = (clock.now() - before).total_seconds()
        assert shown_s >= (world.passed_s - began_s) / 2 - 1e-3
