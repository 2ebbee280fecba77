"""Where checkpoints are kept: a folder (`local`), or a bucket of an S3 API (`s3`)."""

from trainmaster.storage import Storage
from trainmaster.stores import folder_below, open_location, open_storage

__all__ = ["Storage", "folder_below", "open_location", "open_storage"]
