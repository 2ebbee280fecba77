"""A plain `.pt` as a starting point: through the importer's own process, into ranks that train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml

from tests.distributed.ranks import plan_of, tiny_spec, trained
from tests.unit.trainmaster.cli.command import command
from trainmaster.wire import Resume


def test_exported_weights_come_back_through_a_pt_and_training_begins_with_them(
    tmp_path: Path, corpus: Path
) -> None:
    # A learning rate that changes no bit of a float32.
    still = {"lr": 1e-30, "weight_decay": 0.0}
    first = trained(tmp_path / "first", spec := tiny_spec(corpus, steps=2), plan_of(spec))
    at = first.newest().location.removeprefix("file://")
    out = command("export-weights", at, "--out", tmp_path / "out", "--json")
    assert out.status == 0, out.stderr
    assert out.json["weights_sha256"] == first.weights_sha256()
    weights = safetensors.torch.load_file(tmp_path / "out/model.safetensors")
    torch.save({"state_dict": {f"net.{name}": each for name, each in weights.items()}},
               tmp_path / "net.pt")  # fmt: skip

    spec = tiny_spec(corpus, steps=1, seed=9, optimizer=still)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    told: list[dict[str, Any]] = []

    def adopt(body: dict[str, Any]) -> dict[str, Any]:
        told.append(body)
        return {"id": body["run"], "name": "tiny", "state": "stopped"}

    done = command(
        *("import", tmp_path / "net.pt", "--spec", tmp_path / "spec.yaml"),
        *("--to", tmp_path / "run", "--rename", "^net[.]="),
        answers={"POST /v1/imports": [adopt]},
    )
    assert done.status == 0, done.stderr
    [[found]] = [body["checkpoints"] for body in told]
    assert (found["step"], found["layout"]) == (0, {})
    resume = Resume(
        checkpoint=f"{told[0]['run']}-g1-s0",
        step=0,
        location=found["location"],
        manifest_sha256=found["manifest_sha256"],
    )
    plan = plan_of(spec, replicas=2, stages=2)
    second = trained(tmp_path / "second", spec, plan, generation=2, resume=resume)
    assert second.weights_sha256() == first.weights_sha256()

    (tmp_path / "evil.pt").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    refused = command(
        *("import", tmp_path / "evil.pt", "--spec", tmp_path / "spec.yaml"),
        *("--to", tmp_path / "none"),
    )
    assert refused.status == 2, refused.stderr
    assert "cannot be imported: it is not a file of tensors alone" in refused.stderr
