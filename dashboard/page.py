"""The script that Streamlit runs for each page view: all of it is in the package."""

from __future__ import annotations

from dashboard.views import shell
from dashboard.vitals import VITALS

with VITALS.page():
    shell.show()
