"""The dashboard's log: in JSON the lines of Streamlit and its server are such lines too, and say of
which run the page was.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from dashboard.logs import OfPage
from dashboard.settings import read_settings
from trainmaster.errors import UserError

TELLS = """
import logging
from streamlit.logger import get_logger
from dashboard import logs

before = get_logger("streamlit.before")
logs.begin("json")
before.warning("of a logger that was there before")
try:
    raise ValueError("two\\nlines")
except ValueError as error:
    get_logger("streamlit.later").error("of one that came later", exc_info=error)
logging.getLogger("uvicorn.error").error("of the server")
logging.getLogger("dashboard.app").info("our own")
"""


def record(**about: str) -> logging.LogRecord:
    made = logging.LogRecord("streamlit", logging.ERROR, __file__, 1, "failed", (), None)
    vars(made).update(about)
    return made


def test_every_line_on_stderr_is_json_whoever_writes_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TELLS], capture_output=True, text=True, check=True, timeout=60
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("streamlit.before", "of a logger that was there before"),
        ("streamlit.later", "of one that came later"),
        ("uvicorn.error", "of the server"),
        ("dashboard.app", "our own"),
    ]
    assert "ValueError: two\nlines" in lines[1]["exception"]


@pytest.mark.parametrize(
    ("address", "run"),
    [("run=ra1b2c3d4e5&lang=zh", "ra1b2c3d4e5"), ("lang=en", None), (None, None)],
)
def test_a_line_says_of_which_run_the_page_was(address: str | None, run: str | None) -> None:
    line = record()
    assert OfPage(lambda: address).filter(line)
    assert getattr(line, "run", None) == run


def test_a_run_that_the_line_names_itself_stays() -> None:
    line = record(run="rb")
    OfPage(lambda: "run=ra").filter(line)
    assert vars(line)["run"] == "rb"


def test_a_form_that_is_none_is_refused() -> None:
    assert read_settings({"TRAINMASTER_LOG_FORMAT": "JSON"}).log_format == "json"
    with pytest.raises(UserError, match="write text or json"):
        read_settings({"TRAINMASTER_LOG_FORMAT": "xml"})
