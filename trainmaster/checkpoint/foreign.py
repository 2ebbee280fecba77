"""Checkpoints of other programs, known by their files' names, so that none is called damaged."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIGNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "a torch.distributed.checkpoint directory",
        re.compile(r"(.*/)?(\.metadata|__\d+_\d+\.distcp|[^/]+\.distcp)"),
    ),
    (
        "a Megatron checkpoint",
        re.compile(
            r"(.*/)?(latest_checkpointed_iteration\.txt|iter_\d{7}/.*|mp_rank_\d\d(_\d{3})*/"
            r"(model_optim_rng|model_rng|optim|distrib_optim)\.pt)"
        ),
    ),
    (
        "a DeepSpeed checkpoint",
        re.compile(
            r"(.*/)?(zero_to_fp32\.py|global_step\d+/.*|mp_rank_\d\d_model_states\.pt"
            r"|.*zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt)"
        ),
    ),
    (
        "a Hugging Face model directory",
        re.compile(
            r"model\.safetensors|model-\d{5}-of-\d{5}\.safetensors|pytorch_model.*\.bin"
            r"|(model\.safetensors|pytorch_model\.bin)\.index\.json"
        ),
    ),
    ("a pickled torch file", re.compile(r".*\.(pt|pth|ckpt)")),
)


def recognise(names: Sequence[str]) -> str | None:
    """Return whose checkpoint has files of these names, or None if it is nobody's we know.

    Args:
        names: relative to the folder, those in folders below it as "a/b".
    """
    for whose, sign in _SIGNS:
        if any(sign.fullmatch(name) for name in names):
            return whose
    return None
