"""When an agent speaks to the control plane, and how it bears trouble."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from datetime import UTC, datetime

from trainmaster.errors import ForbiddenError, TrainmasterError, UnavailableError, UserError
from trainmaster.facts import Batch
from trainmaster.wire import PROTOCOL_VERSION, Sync, SyncReply
from worker.agent.exchange import (
    FULL_BYTES,
    LONGEST_BACKOFF_S,
    LONGEST_INTERVAL_S,
    REFUSED_BACKOFF_S,
    SHORTEST_INTERVAL_S,
    Exchange,
)


class AtOnce(Executor):
    """Runs what is submitted before it returns."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def, override]
        future: Future[object] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except TrainmasterError as error:
            future.set_exception(error)
        return future


class Plane:
    def __init__(self) -> None:
        self.trouble: TrainmasterError | None = None
        self.next_sync_s = 1.0
        self.protocol = 1
        self.cursors: dict[str, int] = {}

    def sync(self, node: str, message: Sync) -> SyncReply:
        if self.trouble is not None:
            raise self.trouble
        return SyncReply(protocol=self.protocol, cursors=self.cursors, next_sync_s=self.next_sync_s)

    def link_token(self, node: str) -> str:
        raise NotImplementedError(f"{node} measures nothing here")


MESSAGE = Sync(
    boot="b", version="1", sent_at=datetime(2026, 1, 1, tzinfo=UTC), address="h", slots=1
)


def make(drawn: float = 1.0) -> tuple[Plane, Exchange]:
    plane = Plane()
    exchange = Exchange(plane, "n1", executor=AtOnce(), wake=lambda: None, spread=lambda: drawn)
    return plane, exchange


def quiet(exchange: Exchange, now: float) -> bool:
    return exchange.free(now, news=False, eager=False)


def test_it_comes_back_when_told_or_at_once_with_news():
    _, exchange = make()
    exchange.send(MESSAGE)
    assert not quiet(exchange, 0.0), "one exchange at a time"
    assert exchange.poll(10.0) is not None
    assert not quiet(exchange, 10.9)
    assert quiet(exchange, 11.0)
    assert not exchange.free(10.0, news=True, eager=False)
    assert exchange.free(10.0 + SHORTEST_INTERVAL_S, news=True, eager=False)
    assert exchange.free(10.2, news=False, eager=True)


def test_an_absurd_interval_is_bounded():
    plane, exchange = make()
    plane.next_sync_s = 1e9
    exchange.send(MESSAGE)
    exchange.poll(0.0)
    assert quiet(exchange, LONGEST_INTERVAL_S)


def test_trouble_backs_off_within_bounds_and_news_does_not_hurry_it():
    plane, exchange = make()
    plane.trouble = UnavailableError("out of reach")
    now, pauses = 0.0, []
    for _ in range(8):
        exchange.send(MESSAGE)
        assert exchange.poll(now) is None
        pause = next(
            p / 10 for p in range(1000) if exchange.free(now + p / 10, news=True, eager=True)
        )
        pauses.append(pause)
        now += pause
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, LONGEST_BACKOFF_S]
    plane.trouble = None
    exchange.send(MESSAGE)
    answer = exchange.poll(now)
    assert answer is not None
    assert answer.recovered
    exchange.send(MESSAGE)
    again = exchange.poll(now)
    assert again is not None
    assert not again.recovered


def test_agents_that_lose_the_control_plane_together_come_back_apart():
    backs = []
    for drawn in (0.0, 0.5):
        plane, exchange = make(drawn)
        plane.trouble = ForbiddenError("not your node")
        exchange.send(MESSAGE)
        exchange.poll(0.0)
        backs.append(next(s for s in range(100) if quiet(exchange, s)))
    assert backs == [8, 12], "half of the pause, and three quarters of it"


def test_a_refusal_is_tried_again_slowly():
    plane, exchange = make()
    plane.trouble = ForbiddenError("not your node")
    exchange.send(MESSAGE)
    assert exchange.poll(0.0) is None
    assert exchange.troubled
    assert not exchange.free(REFUSED_BACKOFF_S - 0.1, news=True, eager=True)
    assert quiet(exchange, REFUSED_BACKOFF_S)


def test_it_speaks_as_the_last_answer_says_and_begins_with_the_oldest():
    plane, exchange = make()
    spoken = [exchange.protocol]
    for told in (PROTOCOL_VERSION, PROTOCOL_VERSION + 7, 1, 0, PROTOCOL_VERSION):
        plane.protocol = told
        exchange.send(MESSAGE)
        exchange.poll(0.0)
        spoken.append(exchange.protocol)
    newest = PROTOCOL_VERSION
    assert spoken == [1, newest, newest, 1, 1, newest]


def test_whoever_answers_after_trouble_is_spoken_to_in_the_oldest_protocol():
    plane, exchange = make()
    plane.protocol = PROTOCOL_VERSION
    exchange.send(MESSAGE)
    exchange.poll(0.0)
    plane.trouble = UserError("the agent speaks protocol 2: upgrade it first", code="protocol")
    exchange.send(MESSAGE)
    exchange.poll(1.0)
    assert exchange.protocol == 1


def test_a_full_message_is_followed_at_once_but_only_when_it_was_stored():
    plane, exchange = make()
    batch = Batch(stream="r/1/0", from_offset=10, to_offset=10 + FULL_BYTES)
    for stored, waits in ((batch.to_offset, False), (batch.from_offset, True)):
        plane.cursors = {"r/1/0": stored}
        exchange.send(MESSAGE.model_copy(update={"batches": [batch]}))
        exchange.poll(5.0)
        assert exchange.free(5.0, news=True, eager=False) is not waits
