"""docs/matrix.md: the table of `trainmaster.cells`, as people read it."""

from __future__ import annotations

from trainmaster import cells
from trainmaster.cells import Cell, Offload, Zero

_SIGNS = {"none": "", "optimizer": "+o", "parameters": "+p"}
_HEAD = """# What runs with what

Written by `make docs` from `trainmaster/cells.py`: the table by which `submit` refuses, and which
`make matrix` runs. Each proven cell trains on several ranks with uneven shares; its losses,
gradient norms and weights are compared with a plain loop in one process. What is not proven is
refused when a run is submitted, by name and for the reason given here.

Columns are ZeRO levels; `+o` is the same with `offload: optimizer`, `+p` with `parameters`. **=**:
weights equal bit for bit; **~**: within a relative 1e-6 in float32; a letter: refused, for the
reason below.

"""

_AGAIN = """
Activations may be computed again instead of kept, in every cell of the table that is proven, with
the same bits as without; `make matrix` runs each of them with each of these:

"""

_NOTES = """
`offload` other than in these columns is refused. ZeRO 3 needs equal shares,
and is proven with those. A schedule of a third party is run from its order of work by torch's
runtime, as the built-in ones are, and may stand in the same cells. `sync_every`, `bucket_mb`,
`train.precision`, `train.gradient_sums` (`float32`: within 1e-6) and the optimizers are taken in
any cell; tests try them in a few.

Bit for bit holds where micro-batches are of one size, as determinism.md says. With ZeRO it needs
parts of a whole number of vectors (16 values), too: the fused AdamW may round the last few values
of a tensor otherwise, and a tensor ends where a part does.

All of this has been run on CPUs, over Gloo, on one machine. `make matrix`, all in one go on two
cores that were busy with other work (load average up to 47): 459 of 460 tests passed in 1 h 44 min,
and one cell of eight ranks (`interleaved_zero_bubble`, `zero: 2`, `tensor: 2`, `recompute: full`)
was not done within its 300 s; alone it passed in half a minute. After that the status of a step
came to be added up in a tree (adr/0028), and the Python that joins small gradients was rewritten;
the sample of `make test` passes with both.
"""


def matrix_page() -> str:
    """Return docs/matrix.md."""
    columns = [(zero, offload) for zero in cells.ZEROS for offload in _offloads(zero)]
    titles = [f"{zero}{_SIGNS[offload]}" for zero, offload in columns]
    rows = [
        f"| schedule | pipelines | tensor | {' | '.join(titles)} |\n",
        f"|---|---|---|{'---|' * len(columns)}\n",
    ]
    letters: dict[str, str] = {}
    for schedule in cells.built_in():
        for ragged in (False, True):
            for tensor in (False, True):
                marks = [
                    _mark(Cell(schedule, zero, tensor, ragged, offload), letters)
                    for zero, offload in columns
                ]
                kind, parts = "ragged" if ragged else "alike", "2 or more" if tensor else "1"
                rows.append(f"| `{schedule}` | {kind} | {parts} | {' | '.join(marks)} |\n")
    again = [
        "| schedule | `recompute: selective` | `recompute: full` |\n",
        "|---|---|---|\n",
        *(
            f"| `{schedule}` | {_mark(Cell(schedule, recompute='selective'), letters)} | "
            f"{_mark(Cell(schedule, recompute='full'), letters)} |\n"
            for schedule in cells.built_in()
        ),
    ]
    told = "".join(f"- **{letter}**: {reason}\n" for reason, letter in letters.items())
    return f"{_HEAD}{''.join(rows)}{_AGAIN}{''.join(again)}\nRefused because:\n\n{told}{_NOTES}"


def _offloads(zero: Zero) -> tuple[Offload, ...]:
    return ("none", "parameters") if zero == 3 else ("none", "optimizer")


def _mark(cell: Cell, letters: dict[str, str]) -> str:
    found = cells.refusals(cell)
    if not found:
        return "=" if cells.is_bitwise(cell) else "~"
    reasons = [f"`parallel.{each.key}`: {each.because}" for each in found]
    return "".join(letters.setdefault(each, "abcdefgh"[len(letters)]) for each in reasons)
