"""A private Prometheus starts with the test's configuration and evaluates its rules."""

import time

from tests.services.prometheus import StartPrometheus


def test_it_evaluates_the_rules_it_was_given(prometheus: StartPrometheus) -> None:
    server = prometheus(
        {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
        },
        files={
            "rules.yml": {
                "groups": [{"name": "g", "rules": [{"record": "answer", "expr": "vector(42)"}]}]
            }
        },
    )
    deadline = time.monotonic() + 20
    while not server.query("answer"):
        assert time.monotonic() < deadline, "the rule was not evaluated"
        time.sleep(0.1)
    assert server.query("answer")[0]["value"][1] == "42"
    assert server.get("/api/v1/rules")["groups"][0]["name"] == "g"
    server.reload()
