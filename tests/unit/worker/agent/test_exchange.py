"""When an agent speaks to the control plane, and how it bears trouble."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from datetime import UTC, datetime

from trainmaster.errors import ForbiddenError, TrainmasterError, UnavailableError
from trainmaster.wire import Sync, SyncReply
from worker.agent.exchange import (
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

    def sync(self, node: str, message: Sync) -> SyncReply:
        if self.trouble is not None:
            raise self.trouble
        return SyncReply(next_sync_s=self.next_sync_s)


MESSAGE = Sync(
    boot="b", version="1", sent_at=datetime(2026, 1, 1, tzinfo=UTC), address="h", slots=1
)


def make() -> tuple[Plane, Exchange]:
    plane = Plane()
    return plane, Exchange(plane, "n1", executor=AtOnce(), wake=lambda: None)


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


def test_a_refusal_is_tried_again_slowly():
    plane, exchange = make()
    plane.trouble = ForbiddenError("not your node")
    exchange.send(MESSAGE)
    assert exchange.poll(0.0) is None
    assert exchange.troubled
    assert not exchange.free(REFUSED_BACKOFF_S - 0.1, news=True, eager=True)
    assert quiet(exchange, REFUSED_BACKOFF_S)
