"""Where checkpoints are kept: opens a URL with the backend for its scheme. No torch."""

from __future__ import annotations

from importlib.metadata import entry_points
from urllib.parse import urlsplit

from trainmaster.errors import UserError
from trainmaster.storage import Opener, Storage
from worker.storage.local import open_local

__all__ = ["Storage", "folder_below", "open_location", "open_storage"]

ENTRY_POINT_GROUP = "trainmaster.storage"
_BUILT_IN: dict[str, Opener] = {"file": open_local}


def open_storage(url: str) -> Storage:
    """Return the store at `url`. Nothing is created or contacted yet.

    Raises:
        UserError: no backend is installed for its scheme, or the backend refuses the rest of it.
    """
    scheme = urlsplit(url).scheme
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme](url)
    installed = entry_points(group=ENTRY_POINT_GROUP)
    if scheme in installed.names:
        return installed[scheme].load()(url)
    known = ", ".join(sorted({*_BUILT_IN, *installed.names}))
    raise UserError(
        f"{url!r} begins with no scheme that a storage backend is installed for ({known});"
        " a folder is written file:///absolute/path",
        code="bad_storage_url",
    )


def open_location(location: str) -> tuple[Storage, str]:
    """Return the store around a checkpoint's folder, and the folder's name in it.

    Raises:
        UserError: see `open_storage`; or the URL names no folder.
    """
    root, _, folder = location.rstrip("/").rpartition("/")
    if not folder or root.endswith(("/", ":")):
        raise UserError(f"{location!r} is not the URL of a checkpoint's folder", code="bad_path")
    return open_storage(root), folder


def folder_below(storage: Storage, location: str) -> str | None:
    """Return the path of `location` within `storage`, or None if it does not lie there."""
    location, root = location.rstrip("/"), storage.url + "/"
    return location.removeprefix(root) if location.startswith(root) else None
