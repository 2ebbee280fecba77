"""Deletes a checkpoint. Never decides which: the control plane does, and marks it retired first."""

from __future__ import annotations

import re

from trainmaster.checkpoint.manifest import MANIFEST_NAME, STATE_NAME
from trainmaster.errors import UserError
from trainmaster.ids import parse_checkpoint_folder
from worker.storage import open_location

_OURS = re.compile(rf"{re.escape(MANIFEST_NAME)}|{re.escape(STATE_NAME)}|rank-\d{{5}}\.safetensors")


def retire(location: str) -> None:
    """See to it that the checkpoint at the URL `location` is gone: its manifest, then the rest.

    May be repeated, and may be asked of a checkpoint that was never committed.

    Raises:
        UserError: that is no checkpoint's folder, or something else lies in it; nothing is deleted.
        OSError: the store did not do its part.

    Crash: without its manifest the folder is no checkpoint any more; asking again removes the rest.
    """
    storage, folder = open_location(location)
    if parse_checkpoint_folder(folder) is None:
        raise UserError(
            f"{location} is not a checkpoint's folder: {folder!r} is not of the form gG-stepS",
            code="not_a_checkpoint",
        )
    names = [path.removeprefix(f"{folder}/") for path in storage.list(folder)]
    strange = [name for name in names if _OURS.fullmatch(name) is None]
    if strange:
        raise UserError(
            f"{location} holds {strange[0]!r}, which is not part of a checkpoint: move it away",
            code="not_a_checkpoint",
        )
    storage.delete(f"{folder}/{MANIFEST_NAME}")
    storage.delete_folder(folder)
