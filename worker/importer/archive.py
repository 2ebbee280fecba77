"""Files that torch.save has written, read with torch's loader for tensors alone.

torch never compresses an archive, so that one that claims more bytes than it has is hostile.
"""

from __future__ import annotations

import zipfile
from typing import BinaryIO

import torch

from trainmaster.errors import UserError


def load_tensors(source: BinaryIO, num_bytes: int) -> object:
    """Return what a file of `num_bytes` holds: tensors, and containers of them.

    Raises:
        UserError: it holds more than tensors, or claims more bytes than it has.
    """
    _refuse_bomb(source, num_bytes)
    source.seek(0)
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"it is not a file of tensors alone: {reason[:300]}") from error


def _refuse_bomb(source: BinaryIO, num_bytes: int) -> None:
    if not zipfile.is_zipfile(source):
        return
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise UserError(f"its archive is damaged: {error}") from error
    packed = [each for each in members if each.compress_type != zipfile.ZIP_STORED]
    total = sum(each.file_size for each in members)
    if packed or total > num_bytes:
        raise UserError(
            f"its archive claims {total} bytes in a file of {num_bytes}"
            + (f", {packed[0].filename!r} compressed" if packed else "")
            + ": torch writes none such"
        )
