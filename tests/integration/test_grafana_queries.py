"""Every query of the boards is understood by a real Prometheus."""

from __future__ import annotations

import re

import pytest

from control.grafana.boards import BOARDS
from tests.services.prometheus import StartPrometheus

pytestmark = pytest.mark.prometheus


def test_a_real_prometheus_evaluates_every_query_of_every_board(prometheus: StartPrometheus):
    server = prometheus({"scrape_configs": []})
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                # A variable stands for a label's value; nothing is measured, so nothing is found.
                assert server.query(query.expr.replace("$run", "ra1")) == []
        for variable in board.variables:
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.query)
            assert match, variable.query
            assert server.query(match.group(1)) == []
