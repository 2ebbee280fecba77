"""Write the pages that follow from code: `make docs`. A test fails when one is not what this
writes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from trainmaster.metrics import DERIVED, STEP_METRICS, Metric

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
    return head + "".join(map(_metric_row, (*STEP_METRICS, *DERIVED.values())))


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


PAGES = {"docs/metrics.md": metrics_page, "ARCHITECTURE.md": architecture_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")
        print(f"wrote {name}")
