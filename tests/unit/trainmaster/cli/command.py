"""Runs one command of the real application against prepared answers."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.api import Answer, FakeApi, FakeClock
from trainmaster.cli.__main__ import build, run_command
from trainmaster.cli.output import Output
from trainmaster.cli.session import Session
from trainmaster.cli.settings import Settings
from trainmaster.home import Home


@dataclass
class Outcome:
    status: int
    stdout: str
    stderr: str
    api: FakeApi

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def command(
    *words: object, answers: dict[str, list[Answer]] | None = None, home: Path = Path("/nowhere")
) -> Outcome:
    api, clock = FakeApi(answers or {}), FakeClock()
    stdout, stderr = io.StringIO(), io.StringIO()
    session = Session(
        Settings(Home(home)),
        Output(stdout, stderr),
        connect=lambda _: api,
        sleep=clock.sleep,
        monotonic=clock.monotonic,
    )
    status = run_command(build(), [str(word) for word in words], session)
    return Outcome(status, stdout.getvalue(), stderr.getvalue(), api)
