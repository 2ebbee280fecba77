"""Logs: a line says what it is about, and is one line whatever is in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from trainmaster import logs
from trainmaster.errors import UserError

log = logging.getLogger("some.module")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    for handler in before:
        root.removeHandler(handler)
    yield io.StringIO()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_which_run_generation_rank_and_node_it_is_about(stream: io.StringIO):
    logs.begin("json", node="oak", stream=stream)
    log.info("began")
    with logs.about(run="ra1"):
        log.warning("rank %d ended", 3, extra={"generation": 2, "rank": 3})
        with logs.about(generation=4):
            log.info("inner")
    log.info("after")
    first, second, inner, after = lines(stream)
    assert (first["message"], first["node"], first["level"]) == ("began", "oak", "INFO")
    assert first["at"].endswith("+00:00")
    assert second["message"] == "rank 3 ended"
    assert [second[name] for name in logs.FIELDS] == ["ra1", 2, 3, "oak"]
    assert (inner["run"], inner["generation"]) == ("ra1", 4)
    assert after.keys() == {"at", "level", "logger", "message", "node"}


def test_a_line_is_one_line_whatever_is_in_it(stream: io.StringIO):
    logs.begin("json", stream=stream)
    log.error('a "quote"\nand a line feed, 运行')
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("failed")
    first, second = lines(stream)
    assert first["message"] == 'a "quote"\nand a line feed, 运行'
    assert "ValueError: two\nlines" in second["exception"]


def test_lines_for_people_are_as_they_were(stream: io.StringIO):
    logs.begin("text", level="WARNING", stream=stream)
    log.info("not shown")
    log.warning("shown", extra={"run": "ra1"})
    assert stream.getvalue().endswith(" WARNING some.module: shown\n")
    assert len(stream.getvalue().splitlines()) == 1


def test_a_format_that_is_none_is_refused_by_name():
    assert [logs.asked_format(text) for text in ("", "json", " TEXT ")] == ["text", "json", "text"]
    with pytest.raises(UserError, match=r"TRAINMASTER_LOG_FORMAT is 'xml'; write text or json"):
        logs.asked_format("xml")
