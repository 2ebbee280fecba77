import re
from pathlib import Path
from string import Formatter

import pytest

import dashboard
from dashboard import states, steering
from dashboard.i18n import LANGUAGES, best_language, catalogue, translator
from dashboard.session import REFRESH_S
from dashboard.views import incident_dialogs, plan, run, run_charts, run_pipeline, settings

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
    *(f"metric.{metric}" for metric in (*run_charts.RUN_METRICS, *run_charts.RANK_METRICS)),
    *(f"run.section.{name}" for name in run.SECTIONS),
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
    *(f"login.{word}" for word in ("title", "lead", "secret", "enter", "how", "command")),
    *(f"charts.{word}" for word in run_charts.WORDS),
    *(f"silence.for.{name}" for name in incident_dialogs.SILENCE_S),
    *(f"incident.then.{name}" for name in incident_dialogs.THEN),
    *(f"incident.tried.{told}" for told in incident_dialogs.HELPED.values()),
    *(f"pipeline.word.{name}" for name in run_pipeline.WORDS),
    *(f"pipeline.{name}" for name in (*run_pipeline.RATIOS, "measured", "planned")),
    *(f"steer.{part}.timeline" for part in ("help", "why")),
    *(f"charts.smoothing.{name}" for name in run_charts.SMOOTHING),
    *(f"nodes.{name}" for name in ("latency_ms", "mbps")),
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
        "rules.change.",
    )
    left = {key for key in catalogue("en") if key not in shown and not key.startswith(words)}
    assert left == set()


def test_every_event_that_is_documented_has_a_word() -> None:
    text = (SOURCES.parent / "docs" / "events.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^\| `([a-z_]+)`", text, flags=re.MULTILINE)
    assert kinds
    assert [kind for kind in kinds if f"event.{kind}" not in catalogue("en")] == []


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
