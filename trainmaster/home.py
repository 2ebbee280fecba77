"""The state directory: the one place that knows its paths, and who runs from it.

HOME/tokens/NAME                 secrets, mode 0600
HOME/processes/NAME.json         one record per process of this installation
HOME/logs/NAME.log               what those processes print
HOME/control/trainmaster.db      the embedded database
HOME/checkpoints/                the default checkpoint store
HOME/cache/                      what can be made again: tokenised text
HOME/nodes/NODE/                 what an agent keeps: its spool, and one folder per attempt
"""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from trainmaster.errors import UserError

DEFAULT_HOME = Path(".trainmaster")
ADMIN_TOKEN = "admin"  # noqa: S105 (a file's name, not a secret)


_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process as it wrote itself down.

    Attributes:
        started: tells this process from a later one with the same pid (see `identity`).
        address: where it listens, if it does.
        restarts: how often a process of this name has taken the place of one that died.
    """

    name: str
    pid: int
    started: str
    address: str | None = None
    restarts: int = 0

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return identity(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal if this very process still runs; return whether it did."""
        return signal_process(self.pid, self.started, number)


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below the state directory. Nothing is created before it is written to."""

    root: Path

    @property
    def database(self) -> Path:
        """The embedded database of the control plane."""
        return self.root / "control" / "trainmaster.db"

    @property
    def checkpoints(self) -> Path:
        """The default checkpoint store."""
        return self.root / "checkpoints"

    @property
    def cache(self) -> Path:
        """What can be made again."""
        return self.root / "cache"

    def log(self, name: str) -> Path:
        """The file that takes what process `name` prints."""
        return self.root / "logs" / f"{_segment(name)}.log"

    def node(self, node: str) -> Path:
        """What the agent of `node` keeps."""
        return self.root / "nodes" / _segment(node)

    def attempt(self, node: str, run: str, generation: int) -> Path:
        """The folder of one attempt on one node: launches, spools, logs and the inbox."""
        return self.node(node) / "attempts" / _segment(run) / f"g{generation}"

    def rank_log(self, node: str, run: str, generation: int, rank: int) -> Path:
        """What one rank of one generation printed."""
        return self.attempt(node, run, generation) / f"rank-{rank}.log"

    def prepare(self) -> None:
        """Create the state directory and see that it can be written to.

        Raises:
            UserError: it cannot, with what to do about it.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as probe:
                probe.write(b"\0" * 4096)
                probe.flush()
        except OSError as error:
            raise UserError(
                f"the state directory {self.root} cannot be written to ({error.strerror}): "
                f"free some space, mend its permissions, or set TRAINMASTER_HOME to another folder",
                code="home_not_writable",
            ) from error

    def token(self, name: str = ADMIN_TOKEN) -> str | None:
        """Return the stored token, or None if there is none."""
        try:
            return (self.root / "tokens" / _segment(name)).read_text(
                encoding="utf-8"
            ).strip() or None
        except FileNotFoundError:
            return None

    def write_token(self, token: str, name: str = ADMIN_TOKEN) -> Path:
        """Store a token so that only this user can read it; return where."""
        path = self.root / "tokens" / _segment(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, token.encode() + b"\n", mode=0o600)
        return path

    def record_process(
        self, name: str, pid: int, address: str | None = None, *, restarts: int = 0
    ) -> ProcessRecord:
        """Write down that `pid` now is process `name`.

        Taking the place of one that died, rather than ended and was forgotten, is a restart; a
        parent that knows of more says so with `restarts`.

        Raises:
            UserError: there is no such process.
        """
        before = self.process(name)
        started = identity(pid)
        if started is None:
            raise UserError(
                f"there is no process {pid} to record as {name}", code="no_such_process"
            )
        counted = before.restarts + (before.started != started) if before else 0
        record = ProcessRecord(name, pid, started, address, max(counted, restarts))
        path = self._record(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(record)).encode())
        return record

    def process(self, name: str) -> ProcessRecord | None:
        """Return the record of process `name`, dead or alive, or None if there is none."""
        return _read_record(self._record(name))

    def processes(self) -> list[ProcessRecord]:
        """Return all records, dead or alive, by name."""
        found = (_read_record(path) for path in sorted((self.root / "processes").glob("*.json")))
        return [record for record in found if record is not None]

    def forget_process(self, name: str, pid: int | None = None) -> None:
        """Remove the record of `name`; with `pid`, only if it is still that process's."""
        record = self.process(name)
        if record is not None and pid in (None, record.pid):
            self._record(name).unlink(missing_ok=True)

    def _record(self, name: str) -> Path:
        return self.root / "processes" / f"{_segment(name)}.json"


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`: a reader sees the old bytes or the new ones, whole."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def identity(pid: int) -> str | None:
    """Return what tells a living process from others that had or will have its pid; None if dead.

    A zombie does not live: it does nothing any more, whoever has still to reap it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(b")")[2].split()
    if state in (b"Z", b"X"):
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{fields[18].decode()}"


def signal_process(pid: int, started: str, number: int, *, group: bool = False) -> bool:
    """Send a signal to a process, or to the group that it leads; return whether it still lived.

    `started` is what `identity` said of it: a later process with the same pid is left alone.
    """
    if identity(pid) != started:
        return False
    try:
        (os.killpg if group else os.kill)(pid, number)
    except ProcessLookupError:
        return False
    return True


def _segment(name: str) -> str:
    """Return a name or id as one segment of a path; it came from a message or a command line."""
    if _SEGMENT.fullmatch(name) is None:
        raise UserError(f"{name!r} cannot name a file of the state directory", code="bad_name")
    return name


def _read_record(path: Path) -> ProcessRecord | None:
    try:
        return ProcessRecord(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
