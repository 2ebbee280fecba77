from pathlib import Path

from streamlit.web.server.app_discovery import discover_asgi_app

import dashboard


def test_streamlit_run_finds_the_application() -> None:
    found = discover_asgi_app(Path(dashboard.__file__).with_name("app.py"))
    assert found.import_string == "app:app"
