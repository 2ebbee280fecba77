"""Writes the Grafana boards to `deploy/grafana/dashboards`, from where Grafana provisions them."""

from __future__ import annotations

import json
from pathlib import Path

from control.grafana.boards import BOARDS
from control.grafana.panels import Board

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"


def text_of(board: Board) -> str:
    """Return a board as its file holds it."""
    return json.dumps(board.to_json(), indent=2) + "\n"


def main() -> None:
    """Write all of them."""
    for board in BOARDS:
        path = FOLDER / f"{board.uid}.json"
        path.write_text(text_of(board))
        print(f"wrote {path.relative_to(FOLDER.parents[2])}")


if __name__ == "__main__":
    main()
