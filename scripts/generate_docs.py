"""Write the pages that follow from code: `make docs`. A test fails when one is not what this
writes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scripts.matrix_page import matrix_page
from scripts.rules_page import rules_page
from trainmaster.metrics import DERIVED, RATIOS, STEP_METRICS, Metric

ROOT = Path(__file__).parents[1]
PACKAGES = ("trainmaster", "control", "worker", "dashboard")


def metrics_page() -> str:
    """Return docs/metrics.md from the registry."""
    head = (
        "# Metrics\n\n"
        "Written by `make docs` from `trainmaster/metrics.py`.\n\n"
        "Measured once per step on every rank. Run-level values are the same on all ranks after\n"
        "the status all-reduce and are taken from rank 0; the others differ per rank and are\n"
        "reduced as told when one value per step is asked for.\n\n"
        "| metric | unit | level | over ranks | meaning | Prometheus |\n|---|---|---|---|---|---|\n"
    )
    rows = "".join(map(_metric_row, (*STEP_METRICS, *DERIVED.values(), *RATIOS.values())))
    return f"{head}{rows}\n{prometheus_section()}"


def _metric_row(metric: Metric) -> str:
    exported = f"`{metric.prometheus}`" if metric.prometheus else ""
    cells = (
        f"`{metric.name}`",
        metric.unit,
        metric.scope,
        metric.reduce,
        metric.description,
        exported,
    )
    return f"| {' | '.join(cells)} |\n"


EXPORTERS = (
    ("agent", "worker/agent/exporter.py"),
    ("agent", "worker/agent/device_metrics.py"),
    ("agent", "worker/agent/vitals.py"),
    ("control", "control/prometheus/exporter.py"),
    ("control", "control/prometheus/process_metrics.py"),
    ("dashboard", "dashboard/vitals.py"),
)


def prometheus_section() -> str:
    """Return what Prometheus reads beside the gauges above: every family that an exporter names."""
    found: dict[str, tuple[str, list[str], str]] = {}
    for where, path in EXPORTERS:
        for name, kind, text in families(ROOT / path):
            _, seen, _ = found.get(name, (kind, [], text))
            found[name] = kind, [*seen, where], text
    head = (
        "## For Prometheus\n\n"
        "What is named in the last column above is a gauge of each agent; these are there too.\n"
        "Labels are `run`, `rank`, `stage`, `replica`, `node`, or those that the meaning names.\n\n"
        "| name | type | exported by | meaning |\n|---|---|---|---|\n"
    )
    return head + "".join(
        f"| `{name}` | {kind} | {', '.join(where)} | {text} |\n"
        for name, (kind, where, text) in sorted(found.items())
    )


def families(path: Path) -> list[tuple[str, str, str]]:
    """Return (name, type, help) of each family whose name and help a call in `path` spells out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        words = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
        kinds = [each for each in ("counter", "gauge", "histogram") if each in node.func.id.lower()]
        if len(words) == 2 and kinds and str(words[0]).startswith("trainmaster_"):
            suffix = "_total" if kinds[0] == "counter" else ""
            found.append((f"{words[0]}{suffix}", kinds[0], str(words[1])))
    return found


def tree() -> str:
    """Return the four packages and their modules, each with the first sentence that it says of
    itself.
    """
    lines = ["```text\n"]
    for package in PACKAGES:
        lines.append(f"{package}/\n")
        folder = ROOT / package
        modules = sorted(folder.glob("*.py")) + sorted(folder.glob("*/__init__.py"))
        for path in modules:
            inner = path.name == "__init__.py"
            if inner and path.parent == folder:
                continue
            name = f"{path.parent.name}/" if inner else path.stem
            lines.append(f"  {name:<18} {_first_sentence(path)}\n")
    return "".join([*lines, "```\n"])


def _first_sentence(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(said.split("\n\n")[0].split())
    return re.split(r"(?<=[^.])[.](?: |$)", paragraph)[0].rstrip(".") + "."


def _with_block(page: str, name: str, content: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    pattern = rf"(?<=<!-- {name} -->\n).*?(?=<!-- end {name} -->)"
    return re.sub(pattern, lambda _: content, text, flags=re.DOTALL)


def architecture_page() -> str:
    """Return ARCHITECTURE.md with the tree as it is on disk."""
    return _with_block("ARCHITECTURE.md", "tree", tree())


PAGES = {
    "docs/metrics.md": metrics_page,
    "docs/matrix.md": matrix_page,
    "docs/rules/default.md": lambda: rules_page("default"),
    "docs/rules/quiet.md": lambda: rules_page("quiet"),
    "ARCHITECTURE.md": architecture_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")
        print(f"wrote {name}")
