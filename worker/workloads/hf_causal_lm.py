"""Causal language models of Hugging Face's library, cut into layers: Llama, Mistral, Qwen 2 and 3.

The decoder layers are the library's own; input and output embeddings are not tied, since they lie
in different stages. Weights are exported in the form that the library loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import torch
import transformers
from pydantic import ValidationError
from torch import nn
from torch.nn import functional as F

from trainmaster.errors import Problem, SpecError
from trainmaster.plan import Positive, Strict
from trainmaster.plugins import HuggingFaceForm
from worker import settings
from worker.data.text import STDLIB, open_corpus
from worker.workloads.byte_gpt import VOCABULARY, NextByteDataset

MODEL_TYPES: Final = ("llama", "mistral", "qwen2", "qwen3")


class HfCausalLmParams(Strict):
    """The section `params` of a spec that trains this workload.

    Attributes:
        config: what stands in the model's `config.json`, with at least `model_type`.
        context: tokens of a sample.
    """

    config: dict[str, Any]
    context: Positive = 128


class Layer(nn.Module):
    """A decoder layer; the first has the embedding before it, the last norm and head behind it."""

    def __init__(self, config: Any, skeleton: nn.Module, index: int) -> None:
        super().__init__()
        model: Any = skeleton.model
        if index == 0:
            self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = type(model.rotary_emb)(config=config)
        self.block = type(model.layers[0])(config, layer_idx=index)
        if index == config.num_hidden_layers - 1:
            self.norm = type(model.norm)(config.hidden_size, eps=config.rms_norm_eps)
            self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "embedding"):
            x = self.embedding(x)
        places = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        x = self.block(
            x,
            attention_mask=None,  # causal
            position_ids=places,
            position_embeddings=self.positions(x, position_ids=places),
            use_cache=False,
        )
        return self.head(self.norm(x)) if hasattr(self, "head") else x


class HfCausalLm:
    """The workload: satisfies `trainmaster.plugins.Workload` and `WithHuggingFace`."""

    weight_unit: ClassVar[str] = "tokens"

    def __init__(self, config: Any, context: int, source: str) -> None:
        self.config = config
        self.context = context
        self.source = source
        with torch.device("meta"):
            self.skeleton: Any = transformers.AutoModelForCausalLM.from_config(config)

    def layers(self) -> Sequence[Callable[[], nn.Module]]:
        return [
            partial(Layer, self.config, self.skeleton, index)
            for index in range(self.config.num_hidden_layers)
        ]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
        total = F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
        return total, float(target.numel())

    def dataset(self) -> NextByteDataset:
        corpus = open_corpus(self.source, cache_folder=settings.read().cache_folder)
        dataset = NextByteDataset(corpus, self.context)
        if len(dataset) == 0:
            raise SpecError(
                [
                    Problem(
                        "data.source",
                        f"{self.source}: {len(corpus.tokens)} tokens are too few for a context of "
                        f"{self.context}: use a longer text or a shorter context",
                    )
                ]
            )
        return dataset

    def hugging_face(self) -> HuggingFaceForm:
        """Return the model's `config.json`, and the library's name of each parameter."""
        last = self.config.num_hidden_layers - 1
        names = {
            "layers.0.embedding.weight": "model.embed_tokens.weight",
            f"layers.{last}.norm.weight": "model.norm.weight",
            f"layers.{last}.head.weight": "lm_head.weight",
        }
        for index, block in enumerate(self.skeleton.model.layers):
            names |= {
                f"layers.{index}.block.{name}": f"model.layers.{index}.{name}"
                for name, _ in block.named_parameters()
            }
        config = {
            **self.config.to_dict(),
            "architectures": [type(self.skeleton).__name__],
            "dtype": "float32",
        }
        return HuggingFaceForm(config, names)


def workload(*, params: Mapping[str, Any], data: str) -> HfCausalLm:
    """Build the workload from a spec's `params` and `data.source`.

    Raises:
        SpecError: what is wrong with the params, each with its name.
    """
    try:
        checked = HfCausalLmParams.model_validate(dict(params))
    except ValidationError as error:
        raise SpecError(
            [
                Problem(".".join(["params", *map(str, each["loc"])]), str(each["msg"]))
                for each in error.errors()
            ]
        ) from error
    source = STDLIB if data == "workload" else data
    return HfCausalLm(_config(checked.config), checked.context, source)


def _config(given: Mapping[str, Any]) -> Any:
    model_type = given.get("model_type")
    if model_type not in MODEL_TYPES:
        raise _wrong("model_type", f"is {model_type!r}; it may be {', '.join(MODEL_TYPES)}")
    if given.get("tie_word_embeddings"):
        raise _wrong(
            "tie_word_embeddings",
            "is true; the embeddings lie in different stages and are trained apart: say false",
        )
    rest = {
        key: value for key, value in given.items() if key not in {"model_type", "architectures"}
    }
    try:
        config = transformers.AutoConfig.for_model(
            model_type, **{**rest, "tie_word_embeddings": False, "use_cache": False}
        )
    except (TypeError, ValueError) as error:
        raise SpecError(
            [Problem("params.config", f"is no config of {model_type}: {error}")]
        ) from error
    if config.vocab_size < VOCABULARY:
        raise _wrong(
            "vocab_size", f"is {config.vocab_size}; data are read as bytes, which are {VOCABULARY}"
        )
    return config


def _wrong(key: str, what: str) -> SpecError:
    return SpecError([Problem(f"params.config.{key}", what)])
