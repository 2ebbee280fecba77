"""Reduced precision: matrix products in half the bits, everything else in float32.

Weights, their gradients, sums and the optimizer stay in float32; torch's autocast chooses what is
computed in bfloat16 or float16. Float16 has so few exponents that small gradients vanish: the loss
is multiplied by a scale before the backward (Micikevicius et al., 2018, section 3.2), a power of
two, so that dividing by it again changes no bit.

A scale that proves too large costs no step: the step is computed anew with half of it, on the same
samples. So finding the scale is no failed update, and no batch is lost to it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Literal

import torch

Precision = Literal["fp32", "bf16", "fp16"]
INITIAL_SCALE: Final = 2.0**16
GREATEST_SCALE: Final = 2.0**24
GROW_AFTER: Final = 2000
"""Updates in a row with one scale, after which twice the scale is tried."""
TRIES: Final = 5
"""Scales that one step may try; as many as there are before the first update."""

_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which layers and loss compute in `precision` on a device."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


@dataclass(frozen=True, slots=True)
class LossScale:
    """What losses are multiplied by, and how many updates in a row have been applied with it."""

    factor: float = 1.0
    updates: int = 0

    @classmethod
    def initial(cls, precision: Precision) -> LossScale:
        """Return the scale that a run begins with."""
        return cls(INITIAL_SCALE if precision == "fp16" else 1.0)

    @property
    def may_fall(self) -> bool:
        """Whether a smaller scale could help."""
        return self.factor > 1.0

    def lowered(self) -> LossScale:
        """Return the next scale to try after an overflow."""
        return LossScale(max(1.0, self.factor / 2))

    def after_update(self, precision: Precision) -> LossScale:
        """Return the scale of the next step."""
        if precision != "fp16":
            return self
        if self.updates + 1 >= GROW_AFTER and self.factor < GREATEST_SCALE:
            return LossScale(self.factor * 2)
        return LossScale(self.factor, self.updates + 1)
