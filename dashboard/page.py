"""The script that Streamlit runs for each page view: all of it is in the package."""

from __future__ import annotations

from dashboard.views import shell

shell.show()
