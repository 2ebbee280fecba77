"""Docs are tested: what code fixes has its entry, and the map equals the land."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.generate_docs import PAGES
from trainmaster.errors import ExitCode

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_code_says(name):
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


def test_every_exit_code_has_its_entry():
    text = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(rf"\b{int(code)}\b", text), code


def test_every_decision_is_listed_and_every_link_leads_somewhere():
    listed = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    for page in sorted((DOCS / "adr").glob("0*.md")):
        assert page.name in listed
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"


def test_the_tree_in_architecture_equals_the_disk_in_its_top_two_levels():
    """Every tracked folder, and every module of the four packages, has its line."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    names = {Path(path).parts[0] + "/" for path in tracked if "/" in path}
    for package in ("trainmaster", "control", "worker", "dashboard"):
        names |= {
            Path(path).parts[1].removesuffix(".py")
            for path in tracked
            if path.startswith(f"{package}/") and path.endswith(".py")
        } - {"__init__"}
    missing = [name for name in sorted(names) if not re.search(rf"(?<!\w){re.escape(name)}", text)]
    assert missing == [], "ARCHITECTURE.md does not know these"
