"""The byte GPT: its parameters are checked, its layers are lazy, its samples do not overlap."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from trainmaster.errors import SpecError
from trainmaster.plugins import Workload
from worker.data.text import Corpus
from worker.model.workload import build_stage
from worker.workloads.byte_gpt import NextByteDataset, workload

SMALL = {"layers": 3, "width": 16, "heads": 2, "context": 8}


@pytest.mark.parametrize(
    ("params", "path", "said"),
    [
        ({"widht": 3}, "params.widht", "did you mean 'width'"),
        ({"width": 10, "heads": 4}, "params", "not divisible by heads 4; 5 heads would fit"),
        ({"layers": 0}, "params.layers", "greater than or equal to 1"),
        ({"layers": "8"}, "params.layers", "valid integer"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_by_name(
    params: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        workload(params=params, data="workload")
    assert [problem.path for problem in caught.value.problems] == [path]


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        workload(params={"layers": 0, "width": -1, "colour": 1}, data="workload")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_it_has_as_many_layers_as_asked_for_and_runs_through_them(layers: int) -> None:
    built = workload(params={**SMALL, "layers": layers}, data="workload")
    assert isinstance(built, Workload)
    builders = built.layers()
    assert len(builders) == layers
    model = build_stage(builders, first_layer=0, end_layer=layers, seed=0)
    tokens_BT = torch.zeros(2, 8, dtype=torch.int64)
    logits_BTV = model(tokens_BT)
    assert logits_BTV.shape == (2, 8, 256)
    total, weight = built.loss(logits_BTV, tokens_BT)
    assert weight == 16.0
    assert float(total.detach()) / weight == pytest.approx(np.log(256), rel=0.1)


def test_it_does_not_look_ahead() -> None:
    built = workload(params=SMALL, data="workload")
    model = build_stage(built.layers(), first_layer=0, end_layer=3, seed=0)
    text_T = torch.arange(8).unsqueeze(0)
    changed_T = text_T.clone()
    changed_T[0, 5:] += 1
    assert torch.equal(model(text_T)[:, :5], model(changed_T)[:, :5])


def test_a_layer_starts_the_same_whichever_stage_builds_it() -> None:
    builders = workload(params=SMALL, data="workload").layers()
    whole = build_stage(builders, first_layer=0, end_layer=3, seed=5).state_dict()
    parts = [
        build_stage(builders, first_layer=first, end_layer=end, seed=5).state_dict()
        for first, end in ((0, 1), (1, 3))
    ]
    split = parts[0] | parts[1]
    assert whole.keys() == split.keys()
    assert all(torch.equal(whole[name], split[name]) for name in whole)


def test_layers_and_seeds_start_differently() -> None:
    builders = workload(params=SMALL, data="workload").layers()
    one = build_stage(builders, first_layer=0, end_layer=3, seed=5).state_dict()
    other = build_stage(builders, first_layer=0, end_layer=3, seed=6).state_dict()
    name = "layers.{}.block.up.weight"
    assert not torch.equal(one[name.format(0)], one[name.format(1)])
    assert not torch.equal(one[name.format(0)], other[name.format(0)])


def test_samples_follow_each_other_without_overlap_and_targets_are_one_byte_ahead() -> None:
    text = bytes(range(26))
    tokens = np.frombuffer(text, dtype=np.uint8)
    dataset = NextByteDataset(Corpus(tokens, hashlib.sha256(text).hexdigest()), context=8)
    assert len(dataset) == 3
    inputs, targets = dataset[1]
    assert inputs.tolist() == list(range(8, 16))
    assert targets.tolist() == list(range(9, 17))


def test_a_text_shorter_than_the_context_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"short")
    with pytest.raises(SpecError, match="5 bytes of text are too few for a context of 8"):
        workload(params=SMALL, data=f"tokens:{path}").dataset()
