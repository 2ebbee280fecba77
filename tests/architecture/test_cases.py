"""docs/cases.md: each case has a test that exists, or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORTS = ROOT.parent / "shared" / "cases" / "reports.md"
PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
SECTIONS = r"\b(A-[BCKMRW]\d+|X-(?:CHEC|COMM|DB|EXPO|INGE|RULE)\d+)\b"
ROWS = re.findall(r"^\| ([AX]-[A-Z]+\d+) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)


def test_every_row_names_a_test_that_exists_or_a_reason():
    assert len(ROWS) > 30, "the pattern above finds nothing any more"
    missing = []
    for case, _, held in ROWS:
        nodes = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", held)
        assert nodes or held.startswith("none"), f"{case} has neither test nor reason"
        for file, name in nodes:
            path = ROOT / file
            if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
                missing.append(f"{case}: {file}::{name}")
    assert missing == []


def test_every_case_of_these_sections_has_a_row():
    if not REPORTS.is_file():
        pytest.skip("the list of cases is not here")
    listed = set(re.findall(SECTIONS, REPORTS.read_text("utf-8")))
    assert len(listed) > 20
    assert listed - {case for case, _, _ in ROWS} == set()
