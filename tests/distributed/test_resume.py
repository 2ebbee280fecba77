"""A run that goes on from a checkpoint equals one that was never interrupted."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.distributed.ranks import plan_of, started, tiny_spec, trained
from trainmaster.errors import ExitCode
from trainmaster.spec import RunSpec

PAIR = {"replicas": 2, "stages": 2}


def test_it_resumes_bit_for_bit_on_the_same_layout(tmp_path: Path, corpus: Path) -> None:
    spec = tiny_spec(corpus, steps=6)
    plan = plan_of(spec, **PAIR)
    straight = trained(tmp_path / "straight", spec, plan)
    first = trained(tmp_path / "cut", tiny_spec(corpus, steps=3), plan, checkpoint_every=3)
    second = trained(tmp_path / "cut", spec, plan, generation=2, resume=first.newest())
    assert list(second.rows()) == [4, 5, 6]
    assert first.series("loss") + second.series("loss") == straight.series("loss")
    assert second.weights_sha256() == straight.weights_sha256()
    assert second.newest().step == 6


@pytest.mark.parametrize(
    "ask", [{}, {"stages": 4}, {"replicas": 4}, {"stages": 2, "layers": [[0, 3], [3, 4]]}], ids=str
)
def test_it_resumes_onto_another_layout_within_tolerance(
    tmp_path: Path, corpus: Path, ask: dict[str, object]
) -> None:
    spec = tiny_spec(corpus, steps=5)
    straight = trained(tmp_path / "straight", spec, plan_of(spec, **PAIR))
    first = trained(
        tmp_path / "cut", tiny_spec(corpus, steps=3), plan_of(spec, **PAIR), checkpoint_every=3
    )
    second = trained(
        tmp_path / "cut", spec, plan_of(spec, **ask), generation=2, resume=first.newest()
    )
    assert second.series("loss") == pytest.approx(straight.series("loss")[3:], rel=1e-5)


def test_it_resumes_in_the_middle_of_a_batch_ramp_and_of_an_epoch(
    tmp_path: Path, corpus: Path
) -> None:
    short = tmp_path / "short.txt"  # 1,000 samples or so would be an epoch; this is some forty
    short.write_text(corpus.read_text()[:1400])
    told = tiny_spec(short, steps=5).model_dump(mode="json")
    told["train"]["batch_ramp_steps"] = 4
    spec = RunSpec.model_validate({**told, "parallel": {"replicas": 2, "sync_every": 3}})
    plan = plan_of(spec, replicas=2, sync_every=3)
    straight = trained(tmp_path / "straight", spec, plan, checkpoint_every=2)
    assert len(set(straight.series("tokens"))) > 2, "each step is larger than the one before"
    at = straight.checkpoint(2)
    second = trained(tmp_path / "straight", spec, plan, generation=2, resume=at)
    for metric in ("loss", "tokens", "lr", "grad_norm"):
        assert second.series(metric) == straight.series(metric)[2:], metric
    assert second.weights_sha256() == straight.weights_sha256()


def test_a_commit_tells_what_it_holds_and_where_the_generation_began(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=4)
    plan = plan_of(spec, **PAIR)
    first = trained(tmp_path, spec, plan, checkpoint_every=2)
    assert [each["step"] for each in first.events("checkpoint_committed")] == [2, 4]
    second = trained(
        tmp_path, tiny_spec(corpus, steps=5), plan, generation=2, resume=first.newest()
    )
    [event] = second.events("checkpoint_committed")
    assert event["checkpoint"] == "r1-g2-s5"
    assert event["parent"] == "r1-g1-s4"
    assert event["bytes"] > 0
    assert event["files"] == 3, "two stages and the state"
    assert all(not second.events("checkpoint_committed", rank) for rank in (1, 2, 3))


def test_nothing_measured_before_a_commit_is_lost_with_the_process(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=4)
    seen = trained(tmp_path, spec, plan_of(spec, **PAIR), checkpoint_every=1)
    for rank in range(4):
        assert list(seen.rows(rank)) == [1, 2, 3, 4]


def test_a_run_that_skips_batches_equals_one_told_so_by_its_spec(
    tmp_path: Path, corpus: Path
) -> None:
    skipping = tiny_spec(corpus, steps=4, skip=[[2, 3]])
    plain = tiny_spec(corpus, steps=4)
    plan = plan_of(plain, stages=2)
    told = trained(tmp_path / "told", plain, plan, skip=[(3, 3), (2, 2)])
    asked = trained(tmp_path / "asked", skipping, plan)
    assert told.weights_sha256() == asked.weights_sha256()
    assert told.weights_sha256() != trained(tmp_path / "plain", plain, plan).weights_sha256()


def test_windows_of_the_spec_and_of_the_attempt_lower_the_rate(
    tmp_path: Path, corpus: Path
) -> None:
    window = {"first_step": 3, "last_step": 4, "factor": 0.5}
    spec = tiny_spec(corpus, steps=4, lr_factor_windows=[window])
    seen = trained(tmp_path, spec, plan_of(spec), lr_windows=[(4, 4, 0.1)])
    assert seen.series("lr") == pytest.approx([1.5e-3, 3e-3, 1.5e-3, 1.5e-4])


def test_a_flipped_bit_stops_the_rank_that_reads_it_and_is_told(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=2)
    plan = plan_of(spec, stages=2)
    resume = trained(tmp_path, spec, plan).newest()
    damaged = Path(urlsplit(resume.location).path) / "rank-00000.safetensors"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with started(tmp_path, spec, plan, generation=2, resume=resume) as generation:
        codes = generation.join()
    assert codes[0] == ExitCode.INTEGRITY
    assert codes[1] in {ExitCode.TRY_AGAIN, ExitCode.INTEGRITY}
    [event] = generation.events("restore_failed")
    assert event["checkpoint"] == "r1-g1-s2"
    assert event["file"] == "rank-00000.safetensors"
    assert event["expected"] != event["seen"]
    [failed] = generation.events("rank_failed")
    assert failed["exit_code"] == ExitCode.INTEGRITY


def test_a_store_that_cannot_be_written_costs_a_checkpoint_but_not_the_run(
    tmp_path: Path, corpus: Path
) -> None:
    spec = tiny_spec(corpus, steps=3)
    (tmp_path / "checkpoints").write_text("a file where a folder should be")
    with started(tmp_path, spec, plan_of(spec), checkpoint_every=2) as generation:
        codes = generation.join()
    failures = generation.events("checkpoint_failed")
    assert [failure["step"] for failure in failures] == [2, 3]
    assert list(generation.rows()) == [1, 2, 3]
    assert codes == [ExitCode.IO], "the last checkpoint is part of the run"
