"""Non-finite gradients: skipped in step on every rank, rolled back on evidence, and never in a
circle.
"""

from __future__ import annotations

import math
from pathlib import Path

from tests.scenarios.ring import Ring, same_losses, tiny, until


def drill_ahead(ring: Ring, run: str, *options: object) -> int:
    """Inject a NaN drill some steps ahead of where the run is held, and let it go on."""
    ring.wait_for_step(run, 12)
    ring.json("pause", run, "--hold")
    first_step = int(ring.show(run)["step"]) + 14
    ring.json("drill", run, "nan", "--at-step", first_step, *options)
    ring.json("resume", run)
    return first_step


def nan_rule(ring: Ring) -> dict[str, object]:
    return next(
        each for each in ring.json("rules", "list") if each["name"] == "gradient not finite"
    )


def test_the_rule_is_in_sql_and_is_edited_by_command(ring: Ring):
    name = nan_rule(ring)["name"]
    before = ring.json("rules", "show", name)
    ring.json("rules", "edit", name, "--set", "description=edited")
    assert ring.json("rules", "show", name)["description"] == "edited"
    ring.json("rules", "edit", name, "--set", f"description={before['description']}")


def test_nan_on_one_rank_rolls_back_before_the_first_bad_step_and_equals_its_sister(
    ring: Ring, corpus: Path
):
    run = ring.submit(tiny("nan", corpus))
    bad = drill_ahead(ring, run, "--rank", 1, "--for", "5steps")
    done = ring.wait_for(run, "succeeded")

    [incident] = ring.json("incidents", run)
    assert (incident["state"], incident["closed_as"]) == ("closed", "resolved")
    rollback = done["attempts"][-1]
    assert done["generation"] == 2
    assert rollback["resumed_from_step"] < bad
    [[first, last]] = rollback["skip"]
    assert (first, last) in {(bad, bad + more) for more in (2, 3, 4)}
    old = ring.json("series", run, "grad_norm", "--generation", 1, "--points", 100_000)["points"]
    not_finite = [step for _, step, value, _ in old if value == "NaN"]
    assert not_finite[:3] == [bad, bad + 1, bad + 2], (
        "the gradient norm of a skipped step is kept as measured"
    )
    alert = next(
        each for each in ring.json("alerts", run) if each["rule"] == nan_rule(ring)["name"]
    )
    assert alert["first_bad_step"] == bad

    sister = ring.submit(tiny("sister", corpus, skip=rollback["skip"]))
    whole = ring.wait_for(sister, "succeeded")
    assert whole["weights_sha256"] == done["weights_sha256"]
    assert same_losses(ring.losses(sister), ring.losses(run)) == []
    assert all(math.isfinite(value) for value in ring.losses(run).values())


def test_two_bad_steps_heal_and_nothing_is_rolled_back(ring: Ring, corpus: Path):
    run = ring.submit(tiny("heals", corpus, steps=60))
    drill_ahead(ring, run, "--rank", 2, "--for", "2steps")
    done = ring.wait_for(run, "succeeded")
    assert done["generation"] == 1
    assert done["skipped_steps"] == 2


def test_a_sticky_fault_ends_when_the_budget_is_spent_and_says_so(ring: Ring, corpus: Path):
    run = ring.submit(tiny("sticky", corpus, steps=250))
    drill_ahead(ring, run, "--rank", 1, "--for", "60steps", "--sticky")
    done = ring.wait_for(run, "failed")
    assert done["code"] == "budget_exhausted"
    assert "rollback" in done["because"]
    assert done["generation"] <= 5
    until(
        lambda: all(
            rank["exit_code"] is not None or rank["state"] == "exited"
            for rank in ring.show(run)["ranks"]
        )
    )
