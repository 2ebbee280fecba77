"""Writes the state chart in docs/lifecycle.md from the table in control/lifecycle.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from control.lifecycle import state_chart  # noqa: E402

PAGE = ROOT / "docs" / "lifecycle.md"


def main() -> None:
    """Replace the page's mermaid block."""
    chart = f"```mermaid\n{state_chart()}\n```"
    page = PAGE.read_text("utf-8")
    PAGE.write_text(
        re.sub(r"```mermaid\n.*?\n```", lambda _: chart, page, flags=re.DOTALL), "utf-8"
    )


if __name__ == "__main__":
    main()
