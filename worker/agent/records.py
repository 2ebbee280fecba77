"""What a node remembers of its ranks across the agent's lives: one small file for each."""

from __future__ import annotations

from pathlib import Path

from pydantic import AwareDatetime, ValidationError

from trainmaster.facts import Message
from trainmaster.home import write_atomically
from trainmaster.ids import rank_stream


class RankRecord(Message):
    """A rank from the moment before it is forked.

    Attributes:
        pid, started: the process, once it is forked.
        exit_code, signal: how it ended; one of them is set once `exited_at` is.
        stopped: the agent ended it on purpose, so that its end is no cause of anything.
        because: why the agent ended it or thinks that it ended, if it knows more than that.
        evidence: what speaks for a kill by the kernel for lack of memory.
        reported: its exit stands in the journal.
    """

    run: str
    generation: int
    rank: int
    slot: int
    replica: int
    stage: int
    pid: int | None = None
    started: str = ""
    exit_code: int | None = None
    signal: int | None = None
    exited_at: AwareDatetime | None = None
    stopped: bool = False
    because: str | None = None
    evidence: str | None = None
    reported: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        """(run, generation, rank)."""
        return self.run, self.generation, self.rank

    @property
    def stream(self) -> str:
        """The name of its spool stream."""
        return rank_stream(self.run, self.generation, self.rank)

    @property
    def failed(self) -> bool:
        """Whether it ended with anything but exit code 0."""
        return self.exited_at is not None and self.exit_code != 0


def save(attempt: Path, record: RankRecord) -> None:
    """Write the record into the attempt's folder."""
    write_atomically(attempt / f"rank-{record.rank}.json", record.model_dump_json().encode())


def load(node: Path) -> list[RankRecord]:
    """Return all records below a node's folder; one that cannot be read is as if it were not."""
    found = []
    for path in sorted(node.glob("attempts/*/g*/rank-*.json")):
        try:
            found.append(RankRecord.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            continue
    return found
