"""A model of Hugging Face's library, cut into layers and put together again by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.unit.trainmaster.cli.command import command
from trainmaster.checkpoint.stores import open_storage
from trainmaster.errors import SpecError
from trainmaster.plugins import WithHuggingFace, Workload
from worker.checkpoint.writer import save
from worker.model.workload import build_stage
from worker.workloads.hf_causal_lm import MODEL_TYPES, workload

PATH = "worker.workloads.hf_causal_lm:workload"


def params(model_type: str, **config: Any) -> dict[str, Any]:
    small = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": 256,
        "max_position_embeddings": 64,
        "sliding_window": None,
    }
    if model_type == "llama":
        del small["sliding_window"]
    return {"config": {"model_type": model_type, **small, **config}, "context": 8}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_is_exported_the_library_loads_and_computes_alike(
    tmp_path: Path, model_type: str
) -> None:
    given = params(model_type)
    built = workload(params=given, data="workload")
    assert isinstance(built, Workload)
    assert isinstance(built, WithHuggingFace)
    model = build_stage(built.layers(), first_layer=0, end_layer=3, seed=3)
    saved = save(
        open_storage((tmp_path / "r1").as_uri()),
        run="r1",
        generation=1,
        step=1,
        layout={},
        parent=None,
        tensors={f"model/{name}": each for name, each in model.named_parameters()},
        state={"step": 1, "spec": {"workload": PATH, "params": given}},
        group=None,
        rank=0,
        world_size=1,
    )
    assert saved.location is not None
    out = tmp_path / "out"
    done = command("export-weights", saved.location, "--out", out, "--format", "hf", "--json")
    assert done.status == 0, done.stderr
    assert done.json["files"] == ["model.safetensors", "config.json"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    tokens = torch.randint(0, 256, (2, 8), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(model.eval()(tokens), theirs(tokens).logits)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "params.config"),
        ({"config": {"model_type": "bert"}}, "it may be llama, mistral, qwen2, qwen3"),
        (params("llama", tie_word_embeddings=True), "tie_word_embeddings"),
        (params("llama", vocab_size=100), "bytes, which are 256"),
        ({**params("llama"), "contxt": 3}, "params.contxt"),
    ],
)
def test_params_that_fit_no_model_are_refused_by_name(given: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        workload(params=given, data="workload")


def test_the_byte_gpt_has_no_such_form(tmp_path: Path) -> None:
    saved = save(
        open_storage((tmp_path / "r1").as_uri()),
        run="r1",
        generation=1,
        step=1,
        layout={},
        parent=None,
        tensors={"model/w": torch.ones(1)},
        state={"step": 1, "spec": {"workload": "worker.workloads.byte_gpt:workload", "params": {}}},
        group=None,
        rank=0,
        world_size=1,
    )
    done = command("export-weights", saved.location, "--out", tmp_path / "out", "--format", "hf")
    assert done.status == 2
    assert "has no form that Hugging Face's libraries know" in done.stderr
    assert not (tmp_path / "out").exists()
