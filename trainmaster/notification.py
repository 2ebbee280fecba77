"""The door to a channel through which people are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Notification:
    """What people are told. Plain text; nothing in it is to be evaluated.

    Attributes:
        severity: info, warning or critical.
        run: the id of the run that it is about; "" for a test.
    """

    title: str
    body: str
    severity: str
    run: str = ""


class Channel(Protocol):
    """Where notifications go. May be called from any thread; may be given the same one twice."""

    def send(self, notice: Notification) -> None:
        """Hand one over.

        Raises:
            UnavailableError: it may be taken later.
            UserError: it will never be taken like this.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChannelKind:
    """A third party's kind of channel, under the entry point group `trainmaster.channels`.

    Attributes:
        name: as a channel file names it under `plugin`.
        open: params of the channel file -> the channel. Raises `UserError` for params that it
            cannot use, naming them. Sends nothing yet.
    """

    name: str
    open: Callable[[Mapping[str, Any]], Channel]
