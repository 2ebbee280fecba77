"""`nodes`: what is odd about a node stands beside it."""

from tests.unit.trainmaster.cli.command import command


def test_why_a_node_is_cordoned_and_that_its_clock_is_off_are_told() -> None:
    oak = {"name": "oak", "state": "present", "clock_skew_s": 0.2, "cordoned_because": "mended"}
    elm = {
        "name": "elm",
        "state": "present",
        "cordoned": True,
        "cordoned_because": "Run r1: node elm failed at two starts in a row.",
        "clock_skew_s": -301.26,
    }
    told = command("nodes", answers={"GET /v1/nodes": [[oak, elm]]})
    assert "two starts in a row.; its clock is off by -301.3 s" in told.stdout
    assert "mended" not in told.stdout
    assert "0.2" not in told.stdout
