"""The file of channels: where notices go. Only the control plane can read it, for the addresses
hold secrets; nothing of an address is stored, shown or logged.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, model_validator

from trainmaster.document import read, validate
from trainmaster.errors import SpecError, UserError
from trainmaster.plan import Strict


class ChannelSpec(Strict):
    """One channel: an address as Apprise knows them, or a third party's plug-in with its
    parameters.

    Attributes:
        least_severity: what is less severe is not sent here.
        default: whether it gets what no rule has addressed to channels of its own.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    url: SecretStr | None = None
    plugin: Annotated[str, Field(max_length=200)] | None = None
    params: dict[str, Any] = {}
    least_severity: Literal["info", "warning", "critical"] = "warning"
    default: bool = True

    @model_validator(mode="after")
    def _one_way(self) -> ChannelSpec:
        if (self.url is None) == (self.plugin is None):
            raise ValueError("give either url or plugin")
        return self

    @property
    def scheme(self) -> str:
        """What kind of address it is, and nothing more of it."""
        if self.url is None:
            return f"plugin {self.plugin}"
        return self.url.get_secret_value().partition(":")[0]


class ChannelFile(Strict):
    """The file that TRAINMASTER_CHANNELS_FILE names."""

    channels: Annotated[list[ChannelSpec], Field(max_length=100)]

    @model_validator(mode="after")
    def _names_once(self) -> ChannelFile:
        names = [each.name for each in self.channels]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"more than one channel is named {', '.join(twice)}")
        return self


def read_file(path: Path) -> tuple[ChannelSpec, ...]:
    """Return the channels of a file.

    Raises:
        UserError: it cannot be read, others can read it, or it is wrong.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"TRAINMASTER_CHANNELS_FILE: {path} cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(
            f"TRAINMASTER_CHANNELS_FILE: others may read {path}, and it holds secrets: "
            f"chmod 600 {path}"
        )
    try:
        return tuple(validate(ChannelFile, read(text)).channels)
    except SpecError as error:
        told = "; ".join(
            f"line {each.line}: {each.path}: {each.message}" for each in error.problems
        )
        raise UserError(f"TRAINMASTER_CHANNELS_FILE: {path}: {told}") from error
