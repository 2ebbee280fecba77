"""Runs that keep their checkpoints in S3: straight, and behind a fast folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.ring import Ring, running, tiny, until
from tests.scenarios.test_death_and_resume import kill_rank_zero
from tests.services.s3 import Bucket


@pytest.fixture
def s3_ring(tmp_path: Path, bucket: Bucket) -> Iterator[Ring]:
    with running(tmp_path / "home", **bucket.environment) as up:
        yield up


def stored(ring: Ring, run: str) -> list[dict[str, str]]:
    return [each for each in ring.json("checkpoints", run) if each["state"] != "retired"]


def test_a_run_saves_to_s3_and_resumes_from_there_and_from_a_copy_of_what_was_lost(
    s3_ring: Ring, bucket: Bucket, corpus: Path, tmp_path: Path
) -> None:
    """One run straight to the bucket; another behind a folder that is damaged while it trains."""
    straight = tiny("straight", corpus, steps=80)
    straight["checkpoint"] |= {"store": bucket.url, "memory": "off"}
    run = s3_ring.submit(straight)
    s3_ring.wait_for_step(run, 35)
    s3_ring.wait_for_checkpoint(run, 30)
    kill_rank_zero(s3_ring, run)
    done = s3_ring.wait_for(run, "succeeded")
    assert done["attempts"][1]["resumed_from_step"] >= 30
    newest = stored(s3_ring, run)[-1]
    assert newest["location"] == f"{bucket.url}/{run}/g2-step80"
    verified = s3_ring.json("verify", newest["location"])
    assert (verified["ok"], verified["step"]) == (True, 80)
    assert verified["manifest_sha256"] == newest["manifest_sha256"]

    tiered = tiny("tiered", corpus, steps=80)
    fast = tmp_path / "fast"
    tiered["checkpoint"] |= {"store": bucket.url, "local": fast.as_uri(), "keep_last": 20}
    tiered["checkpoint"] |= {"memory": "off"}
    run = s3_ring.submit(tiered)
    s3_ring.wait_for_step(run, 11)
    s3_ring.call("pause", run)

    def all_copied() -> list[dict[str, str]] | None:
        found = stored(s3_ring, run)
        states = {copy["state"] for each in found for copy in each["copies"]}
        return found if found and states == {"stored"} else None

    found = until(all_copied, what="every checkpoint to stand in the bucket, too")
    assert found is not None
    assert found[-1]["location"].startswith(fast.as_uri())
    for file in fast.glob("*/*/rank-00000.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    s3_ring.call("resume", run)
    again = s3_ring.wait_for(run, "succeeded")
    assert again["weights_sha256"] == done["weights_sha256"]
    assert again["attempts"][-1]["resumed_from_step"] == found[-1]["step"]
    passed = s3_ring.events(run, "copy_passed_over")
    assert passed
    assert "rank-00000.safetensors: block 0" in passed[0]["because"]
    [bad] = [each for each in stored(s3_ring, run) if each["id"] == found[-1]["id"]]
    assert {copy["tier"]: copy["state"] for copy in bad["copies"]} == {
        "local": "bad",
        "store": "stored",
    }
    assert bad["location"].startswith(bucket.url)
    assert bad["state"] != "quarantined"
    text = "".join(path.read_text(errors="replace") for path in s3_ring.home.rglob("*.log"))
    assert bucket.environment["AWS_SECRET_ACCESS_KEY"] not in text
