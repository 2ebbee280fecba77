"""`python -m dashboard`: listen on the port that the settings name."""

from __future__ import annotations

import sys

from dashboard.app import app
from dashboard.settings import read_settings
from trainmaster.errors import TrainmasterError


def main() -> int:
    """Serve until ended; return the exit status."""
    try:
        settings = read_settings()
    except TrainmasterError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_status
    app.run(config={"server.port": settings.port})
    return 0


if __name__ == "__main__":
    sys.exit(main())
