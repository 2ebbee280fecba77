"""Docs are tested: what code fixes has its entry, and the map equals the land."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from control.goodput import BUCKETS
from control.lifecycle import ALLOWED_FROM, TRANSITIONS
from control.rules import packs
from scripts.generate_docs import PACKAGES, PAGES
from scripts.rules_page import why
from trainmaster import actions, conditions
from trainmaster.errors import (
    ConflictError,
    ExitCode,
    NotFoundError,
    UnavailableError,
    UserError,
)
from trainmaster.plan import ParallelAsk
from trainmaster.rule import Rule
from trainmaster.spec import RunSpec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_code_says(name):
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


def test_every_exit_code_has_its_entry():
    text = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(rf"\b{int(code)}\b", text), code


def sources(*packages: str) -> str:
    paths = (path for package in packages for path in sorted((ROOT / package).rglob("*.py")))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def undocumented(names: set[str], page: str) -> set[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return {name for name in names if f"`{name}`" not in text}


def test_every_event_has_its_entry():
    told = sources("worker", "control")
    kinds = set(re.findall(r'(?:\.event|tell|_tell)\(\s*"([a-z_]+)"', told))
    kinds |= set(re.findall(r'"((?:request|node|run)_(?!id)[a-z]+ed)"', told))
    kinds |= {f"run_{state}" for state in TRANSITIONS.values()}
    kinds |= {f"{request}_requested" for request in ALLOWED_FROM}
    assert len(kinds) > 40, "the patterns above find nothing any more"
    assert undocumented(kinds, "events.md") == set()


def test_every_bucket_of_wall_time_has_its_entry():
    assert undocumented(set(BUCKETS), "operations.md") == set()


def test_every_setting_has_its_entry():
    names = set(re.findall(r"TRAINMASTER_[A-Z]+(?:_[A-Z]+)*", sources(*PACKAGES)))
    control = (ROOT / "control" / "settings.py").read_text(encoding="utf-8")
    names |= {f"TRAINMASTER_{name}" for name in re.findall(r'text\("([A-Z_]+)"', control)}
    assert undocumented(names, "settings.md") == set()


def test_every_key_of_a_spec_has_its_entry():
    def keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
        for name, info in model.model_fields.items():
            inner = info.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from keys(inner, f"{path}{name}.")
            else:
                yield f"{path}{name}" if path == "data." else name

    names = {*keys(RunSpec), *keys(ParallelAsk)} - {"parallel"}
    assert len(names) > 45, "sections are not found any more"
    assert undocumented(names, "spec.md") == set()


def test_every_code_of_a_refusal_has_its_entry():
    # What the control plane says before it serves is a sentence on stderr; what a turn meets when
    # it was overtaken stays inside.
    inside = {"schema", "home_in_use", "port_in_use", "slot_clash", "backup", "database_damaged"}
    given = set(re.findall(r'code ?= ?"([a-z_]+)"', sources("control")))
    given |= {kind.code for kind in (UserError, NotFoundError, ConflictError, UnavailableError)}
    assert undocumented(given - inside, "http.md") == set()


def test_every_name_that_prometheus_users_rely_on_has_its_entry():
    names = """loss grad_norm step step_duration_seconds tokens_total device_utilization_ratio
        memory_used_ratio pipeline_bubble_ratio collective_duration_seconds
        link_bandwidth_bytes_per_second link_saturation_ratio failed_steps_total
        checkpoint_stall_seconds checkpoint_age_seconds restarts_total run_state node_info"""
    assert undocumented({f"trainmaster_{name}" for name in names.split()}, "metrics.md") == set()


@pytest.mark.parametrize("pack", packs.NAMES)
def test_every_rule_of_a_pack_has_its_why_its_evidence_and_how_to_turn_it(pack):
    reasons = why()
    for rule in packs.load(pack):
        assert all(reasons[rule.name][key].strip() for key in ("why", "evidence", "turn"))
        assert f"## {rule.name}" in (DOCS / "rules" / f"{pack}.md").read_text(encoding="utf-8")
    known = {rule.name for name in packs.NAMES for rule in packs.load(name)}
    assert reasons.keys() == known, "why.yaml speaks of rules that are in no pack"


def test_every_condition_and_every_action_has_its_entry():
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    for kind in (*get_args(conditions.Leaf), conditions.AllOf, conditions.AnyOf):
        [name] = get_args(kind.model_fields["condition"].annotation)
        assert f"| `{name}`" in text, name
        missing = kind.model_fields.keys() - {"condition", "metric", "of", "name", "params"}
        assert [field for field in missing if f"`{field}`" not in text] == [], name
    for kind in (*get_args(actions.PlainAction), actions.Choose):
        [name] = get_args(kind.model_fields["action"].annotation)
        assert f"| `{name}`" in text, name
    fields = {info.alias or name for name, info in Rule.model_fields.items()}
    assert [field for field in fields if f"{field}:" not in text and f"`{field}`" not in text] == []


def test_any_exception_is_caught_only_where_architecture_says():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    catching = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"except Exception\b", path.read_text(encoding="utf-8"))
    }
    assert catching
    assert {path for path in catching if f"`{path}`" not in text} == set()


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
