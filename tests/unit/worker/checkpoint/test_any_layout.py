"""What any layout saves, any other restores: the bytes of all ranks' weights and of what their
optimizers keep are those of one whole model.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from tests.fakes.layouts import OddModel, Rank, plans, ranks_of, save_all
from trainmaster.checkpoint.folder import verify_folder
from trainmaster.plan import Plan
from worker.checkpoint.reader import open_checkpoint
from worker.model.parameters import held
from worker.storage import open_storage

# A failure is told as it was drawn: an example takes too long to make it smaller.
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
KEPT = ("exp_avg", "exp_avg_sq")
Whole = dict[str, torch.Tensor]


def a_whole_state(model: OddModel) -> Whole:
    """Every parameter's weights, and what an optimizer keeps of the trained ones."""
    state: Whole = {}
    for name, parameter in model.build(range(len(model.rows)), seed=1).named_parameters():
        state[f"model/{name}"] = parameter.detach()
        if parameter.requires_grad:
            for key in KEPT:
                state[f"optimizer/{name}/{key}"] = torch.randn(parameter.shape)
            state[f"optimizer/{name}/step"] = torch.tensor(20.0)
    return state


def part(whole: torch.Tensor, offset: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """The box of `whole` that begins at `offset` and has the shape of `like`."""
    ends = (low + size for low, size in zip(offset, like.shape, strict=True))
    return whole[tuple(slice(low, end) for low, end in zip(offset, ends, strict=True))]


def give_state(rank: Rank, whole: Whole) -> None:
    """Have the rank's optimizer keep its share of the whole state."""
    for piece in rank.gradients.pieces:
        kept = {key: whole[f"optimizer/{piece.name}/{key}"] for key in KEPT}
        shares = {
            f"{piece.name}/{key}": part(each, piece.offset, piece.updated).clone()
            for key, each in kept.items()
        }
        step = whole[f"optimizer/{piece.name}/step"].clone()
        rank.optimizer.adopt({**shares, f"{piece.name}/step": step})


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    assert one.shape == other.shape
    return bytes(one.contiguous().numpy().tobytes()) == bytes(other.contiguous().numpy().tobytes())


def assert_holds(rank: Rank, whole: Whole) -> None:
    """Every element that the rank holds is that of the whole, and nothing is missing."""
    role = rank.role
    everything = held(
        rank.layers, tensor=role.tensor, is_divided=role.is_divided, trained_only=False
    )
    assert {int(one.name.split(".")[1]) for one in everything} == set(role.layers)
    for one in everything:
        assert same_bytes(one.local, part(whole[f"model/{one.name}"], one.offset, one.local))
    kept = rank.optimizer.tensors()
    assert len(kept) == len(rank.gradients.pieces) * (len(KEPT) + 1)
    for piece in rank.gradients.pieces:
        weights = part(whole[f"model/{piece.name}"], piece.offset, piece.updated)
        assert same_bytes(piece.updated.detach(), weights)
        for key in KEPT:
            wanted = part(whole[f"optimizer/{piece.name}/{key}"], piece.offset, piece.updated)
            assert same_bytes(kept[f"{piece.name}/{key}"], wanted)
        assert same_bytes(kept[f"{piece.name}/step"], whole[f"optimizer/{piece.name}/step"])


@settings(max_examples=20, phases=QUICK, deadline=None)
@given(data=st.data())
def test_what_any_layout_saves_any_other_restores_byte_for_byte(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), label="rows")
    model = OddModel(rows)
    before: Plan = data.draw(plans(len(rows)), label="before")
    after: Plan = data.draw(plans(len(rows)), label="after")
    whole = a_whole_state(model)
    savers = ranks_of(before, model, seed=1)
    for rank in savers:
        give_state(rank, whole)
    with TemporaryDirectory() as folder:
        storage = open_storage(Path(folder).as_uri())
        saved = save_all(storage, before, savers, generation=1)
        assert verify_folder(Path(folder) / "g1-step20").ok
        opened = open_checkpoint(storage, saved.location, manifest_sha256=saved.manifest_sha256)
        assert opened.manifest.tensors.keys() == whole.keys()
        others = ranks_of(after, model, seed=2)
        for rank in others:
            rank.restore(opened)
            assert_holds(rank, whole)
        again = save_all(storage, after, others, generation=2)
        assert again.manifest.tensors.keys() == whole.keys()
        assert verify_folder(Path(folder) / "g2-step20").ok


def test_each_kind_of_layout_is_among_those_that_are_drawn() -> None:
    """The strategy has not quietly lost one: each can be found in it."""
    kinds = {
        "ragged, with tensor ranks and ZeRO": lambda plan: (
            plan.is_ragged and plan.tensor > 1 and plan.zero == 2
        ),
        "more replicas than rows, parameters divided": lambda plan: (
            plan.zero == 3 and plan.replicas == 3
        ),
        "interleaved stages": lambda plan: plan.virtual == 2,
        "an optimizer on the host": lambda plan: plan.offload == "optimizer" and plan.zero == 1,
    }
    for kind, is_one in kinds.items():
        assert isinstance(find(plans(4), is_one), Plan), kind
