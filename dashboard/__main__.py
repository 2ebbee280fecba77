"""`python -m dashboard`: listen on the port that the settings name.

`App.run` would also have four threads look five times a second whether a file of options has
changed: three quarters of what this process costs while nobody looks.
"""

from __future__ import annotations

import sys

from streamlit.web.bootstrap import load_config_options
from streamlit.web.server.starlette.starlette_server import UvicornRunner

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
    load_config_options({"server.port": settings.port})
    UvicornRunner(app).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
