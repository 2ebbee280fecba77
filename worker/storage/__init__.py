"""Where checkpoints are kept: a folder (`local`), or a bucket of an S3 API (`s3`)."""

from trainmaster.checkpoint.stores import folder_below, open_location, open_storage
from trainmaster.storage import Storage

__all__ = ["Storage", "folder_below", "open_location", "open_storage"]
