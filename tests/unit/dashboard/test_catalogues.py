import re
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

import dashboard
from dashboard import coming, digests, fleet, states, steering
from dashboard.charts import axis, happenings
from dashboard.i18n import LANGUAGES, best_language, catalogue, translator
from dashboard.session import REFRESH_S
from dashboard.views import (
    drills,
    incident_dialogs,
    plan,
    rule_trial,
    rules,
    run,
    run_drawn,
    run_panels,
    run_pipeline,
    run_restore,
    settings,
    spec_form,
    submit,
    tour,
    written,
)

SOURCES = Path(dashboard.__file__).parent
CALLED = re.compile(r"""\bt\(\s*["']([a-z_]+(?:\.[a-z_0-9]+)+)["']""")
QUOTED = re.compile(r"""["'\{]([a-z_]+(?:\.[a-z_0-9]+)+)["']""")
ASKED_ELSEWHERE = ("drill", "amend", "timeline", "approve", "dismiss", "stacks")
BUILT = {
    *(f"run.state.{state}" for state in states.RUN),
    *(f"checkpoint.state.{state}" for state in states.CHECKPOINT),
    *(f"alert.state.{state}" for state in states.ALERT),
    *(f"incident.state.{state}" for state in states.INCIDENT),
    *(f"node.state.{state}" for state in states.NODE),
    *(f"severity.{severity}" for severity in states.SEVERITY),
    *(f"metric.{metric}" for metric in (*run_panels.RUN_METRICS, *run_panels.RANK_METRICS)),
    *(f"fleet.group.{group}" for group in ("all", *fleet.GROUPS)),
    *(f"fleet.count.{told}" for told in get_args(fleet.Count)),
    *(f"fleet.order.{order}" for order in fleet.ORDERS),
    *(f"run.section.{name}" for name in run.SECTIONS),
    *(f"next.{kind}" for kind in coming.KINDS),
    *(f"made.{part}" for part in digests.PARTS),
    *(f"restore.layout.{name}" for name in run_restore.LAYOUTS),
    *(f"restore.budget.{name}" for name in run_restore.BUDGETS),
    "run.spec",
    "run.plan",
    *(f"sidebar.refresh.{choice}" for choice in REFRESH_S),
    *(f"steer.{kind}" for kind in (*steering.VERBS, "restore", *ASKED_ELSEWHERE)),
    *(f"steer.help.{kind}" for kind in steering.VERBS),
    *(f"steer.why.{kind}" for kind in (*steering.VERBS, "restore")),
    *(f"steer.{station}" for station in ("sent", "received", "applied")),
    *(f"role.{role}" for role in settings.ROLES),
    *(f"settings.life.{name}" for name in settings.LIVES_S),
    *(f"plan.source.{name}" for name in plan.SOURCES),
    *(f"rules.mode.help.{mode}" for mode in rules.MODES),
    *(
        f"incident.term.{name}"
        for name in ("steps", "loss", "grad_norm_below", "step_time_at_most_s")
    ),
    *(f"settings.{told}.{name}" for told in ("kept", "zero") for name in settings.KEPT),
    *(f"settings.roles.{role}" for role in settings.ROLES),
    *(f"tour.{name}{part}" for name in tour.STOPS for part in ("", ".title")),
    *(f"nav.{page}" for page in tour.STOPS.values() if page),
    *(f"drills.fault.{name}" for name in drills.FAULTS),
    *(f"written.{way}" for way in written.WAYS),
    *(f"backtest.on.{name}" for name in rule_trial.ON),
    *(f"submit.template.{name}" for name in (submit.BROUGHT, *submit.TEMPLATES)),
    *(f"spec.group.{name or 'run'}" for name, _, _ in spec_form.GROUPS),
    *(f"spec.group.{name}" for name in ("parallel", "keeping")),
    *(f"login.{word}" for word in ("title", "lead", "secret", "enter", "how", "command")),
    *(f"metric.part.{metric}" for metric in run_panels.PARTS),
    *(f"heat.{metric}" for metric in run_panels.HEAT_METRICS),
    *(f"charts.row.{row}" for row in happenings.ROWS),
    *(f"charts.axis.{kind}" for kind in {*axis.KINDS, *axis.SHARED}),
    *(f"charts.{word}" for word in run_panels.WORDS),
    *(f"silence.for.{name}" for name in incident_dialogs.SILENCE_S),
    *(f"incident.then.{name}" for name in incident_dialogs.THEN),
    *(f"incident.tried.{told}" for told in incident_dialogs.HELPED.values()),
    *(f"pipeline.word.{name}" for name in run_pipeline.WORDS),
    *(f"pipeline.{name}" for name in (*run_pipeline.RATIOS, "measured", "planned")),
    *(f"steer.{part}.timeline" for part in ("help", "why")),
    *(f"charts.smoothing.{name}" for name in run_drawn.SMOOTHING),
    *(f"links.{name}" for name in ("latency_ms", "mbps")),
    *(
        f"distance.{name}"
        for name in (
            "tensors",
            "norm",
            "other_norm",
            "difference",
            "relative",
            "largest",
            "changed",
        )
    ),
    *(f"copy.tier.{tier}" for tier in ("local", "store")),
    *(f"copy.state.{state}" for state in ("due", "stored", "bad", "retired")),
}


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))


def test_catalogues_have_equal_keys() -> None:
    assert catalogue("en").keys() == catalogue("zh-CN").keys()


def test_a_text_takes_the_same_values_in_each_language() -> None:
    english, chinese = catalogue("en"), catalogue("zh-CN")
    assert {key for key in english if fields(english[key]) != fields(chinese[key])} == set()


def test_no_text_is_empty() -> None:
    empty = [
        (language, key)
        for language in LANGUAGES
        for key, text in catalogue(language).items()
        if not text.strip()
    ]
    assert empty == []


def test_every_key_that_the_code_names_is_in_the_catalogue() -> None:
    named = set(CALLED.findall(source())) | BUILT
    assert named - catalogue("en").keys() == set()


def test_no_text_is_left_that_nothing_shows() -> None:
    shown = set(QUOTED.findall(source())) | BUILT
    words = (
        *("event.", "rank.state.", "incident.closed_as.", "rules.mode.", "alert.state."),
        *("rules.change.", "field.", "choice."),
    )
    left = {key for key in catalogue("en") if key not in shown and not key.startswith(words)}
    assert left == set()


def test_every_event_that_is_documented_has_a_word() -> None:
    text = (SOURCES.parent / "docs" / "events.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^\| `([a-z_]+)`", text, flags=re.MULTILINE)
    assert kinds
    assert [kind for kind in kinds if f"event.{kind}" not in catalogue("en")] == []


def test_every_entry_of_the_audit_log_has_a_word() -> None:
    control = (SOURCES.parent / "control").rglob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in control)
    told = set(re.findall(r"\baction ?= ?\"(\w+_\w+)\"(?: if \w+ else \"(\w+)\")?", text))
    names = {name for pair in told for name in pair if name}
    names |= set(re.findall(r"_tell\(connection, \"(\w+)\"", text))
    kinds = re.findall(r'^    "(\w+)": bodies\.', text, flags=re.MULTILINE)
    ends = ("requested", "applied", "refused")
    names |= {f"{kind}_{end}" for kind in kinds for end in ends}
    assert {"run_submitted", "node_uncordoned", "silence_added", "pause_refused"} <= names
    assert {name for name in names if f"event.{name}" not in catalogue("en")} == set()


def test_values_are_never_read_as_patterns() -> None:
    t = translator("en")
    assert t("fleet.firing", rules="{0.__class__}") == "Firing: {0.__class__}"


def test_an_unknown_word_is_shown_as_it_is() -> None:
    assert translator("zh-CN").word("event", "never_heard_of") == "never_heard_of"


@pytest.mark.parametrize(
    ("asked", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"),
        ("zh", "zh-CN"),
        ("en-GB", "en"),
        ("fr-FR,zh;q=0.5", "zh-CN"),
        ("fr", "en"),
        ("", "en"),
    ],
)
def test_the_first_language_that_we_speak_is_chosen(asked: str, language: str) -> None:
    assert best_language(asked) == language
