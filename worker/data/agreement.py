"""All ranks must train on the same data with the same code, and go on with what they began with."""

from __future__ import annotations

from collections.abc import Sequence

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


def refuse_other_samples(sha256: str | None, group: dist.ProcessGroup) -> None:
    """Refuse to train where two ranks see other samples under the same index; a collective. Inputs
    are read by the first stage and targets by the last, so nobody would notice.

    Args:
        sha256: digest of how many samples this rank sees and of some of them; None where it reads
            none.

    Raises:
        SpecError: two ranks' differ; on all ranks alike.
    """
    known = {rank: each for rank, each in enumerate(_gathered(sha256, group)) if each.strip("0")}
    first = next(iter(known), 0)
    for rank, digest in known.items():
        if digest != known[first]:
            message = (
                f"rank {rank} sees other samples (sha256 {digest[:12]}) than rank {first} "
                f"({known[first][:12]}): the same index must give the same sample on every node"
            )
            raise SpecError([Problem("data.source", message)])


def refuse_other_weights(digests: Sequence[str | None], group: dist.ProcessGroup) -> None:
    """Refuse to train replicas that begin with other weights; a collective.

    Args:
        digests: of each layer of the model as this rank has built it; None for those it does not
            hold.

    Raises:
        SpecError: two ranks have built a layer differently; on all ranks alike.
    """
    told = b"".join(bytes.fromhex(each) if each else bytes(_DIGEST_BYTES) for each in digests)
    mine = torch.frombuffer(bytearray(told), dtype=torch.uint8)
    parts = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(parts, mine, group=group)
    for layer in range(len(digests)):
        span = slice(layer * _DIGEST_BYTES, (layer + 1) * _DIGEST_BYTES)
        built = {
            rank: digest
            for rank, part in enumerate(parts)
            if (digest := part[span].numpy().tobytes().hex()).strip("0")
        }
        first = next(iter(built), 0)
        for rank, digest in built.items():
            if digest != built[first]:
                message = (
                    f"layer {layer} begins with other weights on rank {rank} (sha256 "
                    f"{digest[:12]}) than on rank {first} ({built[first][:12]}): they must depend "
                    "on torch's default generator alone"
                )
                raise SpecError([Problem("workload", message)])


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
