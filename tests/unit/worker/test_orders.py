"""Rank 0 takes each order once, in order of seq, and tells the rest one at a time."""

from __future__ import annotations

from pathlib import Path

from trainmaster.orders import Order, OrderWord
from trainmaster.spool import Header, decode
from worker.guard import NO_ORDER
from worker.launch import Inbox
from worker.orders import InboxFile, OrderDesk
from worker.reporting.spoolfile import SpoolFile


def write(path: Path, *orders: Order) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(Inbox(orders=list(orders)).model_dump_json())
    draft.replace(path)


def test_an_absent_inbox_is_empty(tmp_path: Path) -> None:
    assert InboxFile(tmp_path / "inbox.json").look() == Inbox()


def test_an_inbox_is_parsed_again_only_when_it_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "inbox.json"
    write(path, Order(seq=1, kind="hold"))
    inbox = InboxFile(path)
    first = inbox.look()
    assert inbox.look() is first
    write(path, Order(seq=1, kind="hold"), Order(seq=2, kind="release"))
    assert [order.seq for order in inbox.look().orders] == [1, 2]


def test_orders_are_told_once_each_in_order_of_seq(tmp_path: Path) -> None:
    path, told = tmp_path / "inbox.json", tmp_path / "spool"
    desk = OrderDesk(InboxFile(path), SpoolFile(told, Header("r/1/0")))
    assert desk.next() == NO_ORDER
    write(path, Order(seq=4, kind="release"), Order(seq=3, kind="hold"))
    assert desk.next() == (OrderWord.HOLD, 3)
    write(path, *(Order(seq=seq, kind="checkpoint") for seq in (3, 4, 5)))
    assert [desk.next() for _ in range(3)] == [
        (OrderWord.RELEASE, 4),
        (OrderWord.CHECKPOINT, 5),
        NO_ORDER,
    ]
    desk.applied(3, step=7)
    desk.refused(4, step=7, because="the run is not held")
    events = decode(told.read_bytes(), offset=0, header=None).events
    assert [event["kind"] for event in events] == [
        *["order_received"] * 3,
        "order_applied",
        "order_refused",
    ]
