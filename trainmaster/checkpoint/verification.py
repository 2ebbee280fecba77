"""What is wrong with a checkpoint: every file read, every difference reported.

Pure: files are read through callables. A rank that restores stops at the first thing wrong, by the
same code (`verified`); this goes on and reports each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

from trainmaster.checkpoint import foreign
from trainmaster.checkpoint.manifest import MANIFEST_NAME, STATE_NAME, Manifest
from trainmaster.checkpoint.verified import (
    NOTHING,
    Read,
    Shards,
    Size,
    VerifiedFile,
    checked_spans,
    open_manifest,
    read_state,
    shards_by_file,
)
from trainmaster.errors import IntegrityError
from trainmaster.ids import parse_checkpoint_folder

READ_AHEAD = 2
"""Blocks that an executor holds ready while one is hashed."""

Kind = Literal[
    "foreign",
    "missing_file",
    "extra_file",
    "manifest",
    "size",
    "block_digest",
    "file_digest",
    "content",
    "unreadable",
]


class Finding(BaseModel):
    """One thing wrong with a checkpoint. `block` counts from 0."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    message: str
    file: str | None = None
    block: int | None = None
    expected: str | None = None
    seen: str | None = None

    def __str__(self) -> str:
        return self.message


class Report(BaseModel):
    """What a verification found, and how much it read.

    Attributes:
        foreign: whose checkpoint this is instead, where it is one of another program.
        manifest_sha256: digest of the bytes of `manifest.json`.
        files, bytes: those read and found right.
    """

    model_config = ConfigDict(frozen=True)

    run: str | None = None
    generation: int | None = None
    step: int | None = None
    manifest_sha256: str | None = None
    foreign: str | None = None
    files: int = 0
    bytes: int = 0
    findings: tuple[Finding, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self.findings

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sound(self) -> bool:
        """Whether it can be restored: all that the manifest names is there and right."""
        return all(finding.kind == "extra_file" for finding in self.findings)


def verify(
    *,
    read: Read,
    size: Size,
    names: Callable[[], Iterable[str]],
    folder: str | None = None,
    manifest_sha256: str | None = None,
    executor: Executor | None = None,
) -> Report:
    """Check a whole checkpoint: manifest, sizes, digests, headers, and what else lies there.

    Args:
        names: lists the files of the folder, those in folders below it as "a/b". Names that begin
            with a dot are not ours and are passed over.
        folder, manifest_sha256: see `open_manifest`.
        executor: where blocks are read and hashed ahead; without one it is all done here.

    Raises:
        UnavailableError: the store cannot be read now, so that nothing can be said.

    Cost: reads every byte once; two SHA-256 over each.
    """
    present = sorted(names())
    if MANIFEST_NAME not in present and (whose := foreign.recognise(present)) is not None:
        message = f"this is {whose}, not a checkpoint of this program"
        return Report(foreign=whose, findings=(Finding(kind="foreign", message=message),))
    try:
        manifest, seen = open_manifest(read, size, folder=folder, manifest_sha256=manifest_sha256)
    except IntegrityError as error:
        missing = MANIFEST_NAME not in present
        if missing and (ours := checkpoints_below(present)):
            message = f"this holds checkpoints and is none: name one, such as {ours[-1]}"
            return Report(
                findings=(Finding(kind="missing_file", message=message, file=MANIFEST_NAME),)
            )
        return Report(findings=(_finding("missing_file" if missing else "manifest", error),))
    findings: list[Finding] = []
    right_files = right_bytes = 0
    shards = shards_by_file(manifest)
    for name, entry in sorted(manifest.files.items()):
        wrong = list(_check_file(manifest, name, shards.get(name), read, size, executor))
        findings += wrong
        if not wrong:
            right_files += 1
            right_bytes += entry.bytes
    for name in present:
        if name not in manifest.files and name != MANIFEST_NAME and not name.startswith("."):
            message = f"{name}: is not in the manifest"
            findings.append(Finding(kind="extra_file", message=message, file=name))
    return Report(
        run=manifest.run,
        generation=manifest.generation,
        step=manifest.step,
        manifest_sha256=seen,
        files=right_files,
        bytes=right_bytes,
        findings=tuple(findings),
    )


def checkpoints_below(names: Iterable[str]) -> list[str]:
    """Return the folders of checkpoints among `names`, oldest first: where there are some, what was
    listed is a run's folder.
    """
    folders = {name.partition("/")[0] for name in names if "/" in name}
    ours = {name: at for name in folders if (at := parse_checkpoint_folder(name)) is not None}
    return sorted(ours, key=ours.__getitem__)


def _check_file(
    manifest: Manifest,
    name: str,
    shards: Shards | None,
    read: Read,
    size: Size,
    executor: Executor | None,
) -> Iterator[Finding]:
    entry = manifest.files[name]
    file = VerifiedFile(name, entry, read)
    try:
        file.check_size(size)
    except IntegrityError as error:
        yield _finding("missing_file" if error.seen == NOTHING else "size", error)
        return
    if executor is not None:
        file.expect(range(len(entry.blocks)), executor, ahead=READ_AHEAD)
    whole = hashlib.sha256()
    damaged = False
    for index in range(len(entry.blocks)):
        try:
            whole.update(file.block(index))
        except IntegrityError as error:
            yield _finding("block_digest" if error.block is not None else "unreadable", error)
            damaged = True
    if damaged:
        return
    seen = f"sha256:{whole.hexdigest()}"
    if seen != entry.sha256:
        yield Finding(
            kind="file_digest",
            message=f"{name}: expected {entry.sha256}, seen {seen}",
            file=name,
            expected=entry.sha256,
            seen=seen,
        )
        return
    try:
        if name == STATE_NAME:
            read_state(manifest, read, size)
        else:
            checked_spans(file, shards or {})
    except IntegrityError as error:
        yield _finding("content", error)


def _finding(kind: Kind, error: IntegrityError) -> Finding:
    return Finding(
        kind=kind,
        message=error.message,
        file=error.file,
        block=error.block,
        expected=error.expected,
        seen=error.seen,
    )
