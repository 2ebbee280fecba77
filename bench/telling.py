"""What a bench has measured, told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def tell(told: dict[str, Any], out: Path | None) -> None:
    """Print it as JSON, and write it to a file where one is asked for."""
    text = json.dumps(told, indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n")
