"""The default pack on healthy curves that were never logged: smooth, noisy, warmed up, decayed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from control.rules import packs
from control.rules.backtest import backtest
from control.rules.frame import column_of
from control.rules.history import history_of
from control.rules.names import columns_of

STEPS = 600


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    start=st.floats(0.5, 12.0),
    fall=st.floats(0.1, 0.9),
    half_life=st.floats(20.0, 2_000.0),
    loss_noise=st.floats(0.0, 0.1),
    norm=st.floats(1e-3, 1e6),
    norm_noise=st.floats(0.0, 0.3),
    warmup=st.integers(0, 300),
    decayed_to=st.sampled_from((1.0, 0.1, 0.0)),
)
def test_a_curve_that_falls_smoothly_under_its_noise_is_left_alone(
    seed: int,
    start: float,
    fall: float,
    half_life: float,
    loss_noise: float,
    norm: float,
    norm_noise: float,
    warmup: int,
    decayed_to: float,
) -> None:
    draw = np.random.default_rng(seed)
    steps = np.arange(1, STEPS + 1)
    left = 0.5 ** (steps / half_life)
    loss = start * (1 - fall + fall * left) * (1 + loss_noise * draw.standard_normal(STEPS))
    # Norms are large while a run warms up, and their noise is lop-sided.
    level = (
        norm
        * (1 + 20 * left * (steps <= warmup))
        * np.exp(norm_noise * draw.standard_normal(STEPS))
    )
    cosine = decayed_to + (1 - decayed_to) * (1 + np.cos(np.pi * steps / STEPS)) / 2
    rate = 1e-3 * np.minimum(1.0, steps / max(1, warmup)) * cosine
    columns = {"loss": loss, "grad_norm": level, "lr": rate, "applied": np.ones(STEPS)}
    table = columns_of({name: column_of(values.tolist()) for name, values in columns.items()})
    told = backtest(packs.load("default"), history_of("made up", steps, table.of_run))
    assert told["destructive"] == 0, told["findings"]
