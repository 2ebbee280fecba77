"""A byte-level GPT: trains on any text, needs no tokeniser, and fits on a laptop.

Tensors carry shape suffixes: B samples, T positions, C width, V vocabulary, H heads, D width of a
head.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, ValidationError, model_validator
from torch import nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
)
from torch.nn import functional as F

from trainmaster.errors import Problem, SpecError
from trainmaster.plan import Positive, Strict
from worker import settings
from worker.data.text import STDLIB, Corpus, open_corpus

VOCABULARY = 256
INIT_STD = 0.02


class ByteGptParams(Strict):
    """The section `params` of a spec that trains this workload."""

    layers: Annotated[int, Field(ge=1, le=10_000)] = 8
    width: Positive = 128
    heads: Positive = 4
    context: Positive = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ByteGptParams:
        if self.width % self.heads:
            near = min(
                (count for count in range(1, self.width + 1) if self.width % count == 0),
                key=lambda count: abs(count - self.heads),
            )
            raise ValueError(
                f"width {self.width} is not divisible by heads {self.heads}; {near} heads would fit"
            )
        return self


class Attention(nn.Module):
    """Causal self-attention over T positions.

    Queries, keys and values of a head come from adjoining rows of one matrix, so that a run of rows
    is a run of whole heads: a rank may hold some of them only (H is what it holds).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query_key_value_by_head = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        B, T, _ = x_BTC.shape
        all_BTH3D = self.query_key_value_by_head(x_BTC).view(B, T, -1, 3, self.head_width)
        q_BHTD, k_BHTD, v_BHTD = all_BTH3D.permute(3, 0, 2, 1, 4).unbind()
        mixed_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        return self.out(mixed_BHTD.transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    """One layer of the pipeline: pre-norm attention and a feed-forward of four times the width."""

    def __init__(self, params: ByteGptParams) -> None:
        super().__init__()
        width = params.width
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, params.heads)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(params.dropout)
        for linear in (self.attention.query_key_value_by_head, self.up):
            _init_linear(linear, INIT_STD)
        # Two branches per layer add to the residual stream, whose variance should not grow with
        # depth (Radford et al., 2019, section 2.3).
        for linear in (self.attention.out, self.down):
            _init_linear(linear, INIT_STD / (2 * params.layers) ** 0.5)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        x_BTC = x_BTC + self.dropout(self.attention(self.norm_attention(x_BTC)))
        y_BTC = self.down(F.gelu(self.up(self.norm_feed_forward(x_BTC))))
        return x_BTC + self.dropout(y_BTC)


class Embedding(nn.Module):
    """Bytes and their positions as vectors."""

    def __init__(self, params: ByteGptParams) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, params.width)
        self.position = nn.Embedding(params.context, params.width)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=INIT_STD)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        return self.token(tokens_BT) + self.position.weight[: tokens_BT.shape[1]]


class Head(nn.Module):
    """Logits over the next byte."""

    def __init__(self, params: ByteGptParams) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(params.width)
        self.out = nn.Linear(params.width, VOCABULARY, bias=False)
        nn.init.normal_(self.out.weight, std=INIT_STD)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x_BTC))


class Layer(nn.Module):
    """A block; the first layer has the embedding before it, the last one the head behind it."""

    def __init__(self, params: ByteGptParams, index: int) -> None:
        super().__init__()
        if index == 0:
            self.embedding = Embedding(params)
        self.block = Block(params)
        if index == params.layers - 1:
            self.head = Head(params)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "embedding"):
            x = self.embedding(x)
        x = self.block(x)
        return self.head(x) if hasattr(self, "head") else x


class NextByteDataset:
    """Windows of `context` bytes and the bytes that follow each, without overlap."""

    def __init__(self, corpus: Corpus, context: int) -> None:
        self.sha256 = corpus.sha256
        self._tokens = corpus.tokens
        self._context = context

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self._context
        window = torch.from_numpy(self._tokens[first : first + self._context + 1].astype(np.int64))
        return window[:-1], window[1:]


class ByteGpt:
    """The workload: satisfies `trainmaster.plugins.Workload`."""

    weight_unit: ClassVar[str] = "tokens"

    def __init__(self, params: ByteGptParams, source: str) -> None:
        self.params = params
        self.tensor_units = params.heads
        self.source = source

    def layers(self) -> Sequence[Callable[[], nn.Module]]:
        return [partial(Layer, self.params, index) for index in range(self.params.layers)]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
        total = F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
        return total, float(target.numel())

    def tensor_parallel(self, layer: int) -> Mapping[str, ParallelStyle]:
        """Divide each pair of matrices along what lies between them (Shoeybi et al., 2019, section
        3); embedding, norms and head stay whole.
        """
        return {
            "block.attention.query_key_value_by_head": ColwiseParallel(),
            "block.attention.out": RowwiseParallel(),
            "block.up": ColwiseParallel(),
            "block.down": RowwiseParallel(),
        }

    def dataset(self) -> NextByteDataset:
        corpus = open_corpus(self.source, cache_folder=settings.read().cache_folder)
        dataset = NextByteDataset(corpus, self.params.context)
        if len(dataset) == 0:
            message = (
                f"{self.source}: {len(corpus.tokens)} bytes of text are too few for a context of "
                f"{self.params.context}: use a longer text or a shorter context"
            )
            raise SpecError([Problem("data.source", message)])
        return dataset


def workload(*, params: Mapping[str, Any], data: str) -> ByteGpt:
    """Build the workload from a spec's `params` and `data.source`.

    Raises:
        SpecError: an unknown or unfit parameter, each with its name.
    """
    try:
        checked = ByteGptParams.model_validate(dict(params))
    except ValidationError as error:
        raise SpecError([_problem_of(each) for each in error.errors()]) from error
    return ByteGpt(checked, STDLIB if data == "workload" else data)


def _problem_of(error: Any) -> Problem:
    path = ".".join(["params", *map(str, error["loc"])])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), ByteGptParams.model_fields, n=1)
        known = (
            f"did you mean {near[0]!r}?"
            if near
            else f"it takes {', '.join(ByteGptParams.model_fields)}"
        )
        return Problem(path, f"is not a parameter of the byte GPT; {known}")
    return Problem(
        path,
        str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "should be"),
    )


def _init_linear(linear: nn.Linear, std: float) -> None:
    nn.init.normal_(linear.weight, std=std)
    nn.init.zeros_(linear.bias)
