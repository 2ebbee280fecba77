"""All ranks must train on the same data with the same code, and go on with what they began with."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trainmaster.errors import Problem, SpecError

_DIGEST_BYTES = 32


def agree(sha256: str | None, group: dist.ProcessGroup) -> str | None:
    """Return the digest of the data that those ranks read that know one; a collective.

    Raises:
        SpecError: two ranks read different data; on all ranks alike.
    """
    digests = _gathered(sha256, group)
    known = {digest: rank for rank, digest in enumerate(digests) if digest.strip("0")}
    if len(known) > 1:
        (one, rank), (other, other_rank), *_ = known.items()
        message = (
            f"rank {rank} reads another text (sha256 {one[:12]}) than rank {other_rank} "
            f"({other[:12]}): give text:PATH or tokens:PATH with the same content on every node"
        )
        raise SpecError([Problem("data.source", message)])
    return next(iter(known), None)


def refuse_other_code(sha256: str, group: dist.ProcessGroup) -> None:
    """Refuse to train with a workload whose code is not rank 0's; a collective.

    Raises:
        SpecError: some rank's differs; on all ranks alike.
    """
    first, *others = _gathered(sha256, group)
    for rank, digest in enumerate(others, start=1):
        if digest != first:
            message = (
                f"rank {rank} has other code for it (sha256 {digest[:12]}) than rank 0 "
                f"({first[:12]}): install the same version on every node"
            )
            raise SpecError([Problem("workload", message)])


def _gathered(sha256: str | None, group: dist.ProcessGroup) -> list[str]:
    """Return all ranks' digests; zeros where one knows none."""
    told = bytes.fromhex(sha256) if sha256 else bytes(_DIGEST_BYTES)
    mine = torch.frombuffer(bytearray(told), dtype=torch.uint8)
    parts = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(parts, mine, group=group)
    return [part.numpy().tobytes().hex() for part in parts]


def refuse_changed(saved: object, now: str | None) -> None:
    """Refuse to go on from a checkpoint that was trained on other data.

    Raises:
        SpecError: the content has changed since `saved` was noted.
    """
    if isinstance(saved, str) and now is not None and saved != now:
        message = (
            f"the text has changed since the checkpoint was taken (sha256 {saved[:12]}, now "
            f"{now[:12]}): put it back, or submit a new run on the new text"
        )
        raise SpecError([Problem("data.source", message)])
