"""The file of channels: secrets stay in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.channel_file import ChannelSpec, read_file
from control.notify.channels import open_channel, targets
from trainmaster.errors import UserError

GOOD = """\
channels:
  - {name: ops, url: "slack://TOKEN-A/TOKEN-B/TOKEN-C/#ops", least_severity: critical}
  - {name: log, url: "json://localhost:1/x", default: false}
"""


def file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "channels.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_channels_are_read_and_their_addresses_are_not_shown(tmp_path: Path):
    ops, log = read_file(file(tmp_path, GOOD))
    assert (ops.scheme, ops.least_severity, log.default) == ("slack", "critical", False)
    assert "TOKEN" not in repr((ops, log))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("channels: [{name: a}]", "url or plugin"),
        ("channels: [{name: a, url: x, plugin: y}]", "url or plugin"),
        ("channels: [{name: 'a b', url: x}]", "name"),
        ("channels: [{name: a, url: x}, {name: a, url: y}]", "more than one channel is named a"),
        ("channels: [{name: a, url: x, least_severity: loud}]", "least_severity"),
        ("chanels: []", "chanels"),
        ("channels: [", "line 1"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, named: str):
    with pytest.raises(UserError) as refused:
        read_file(file(tmp_path, text))
    assert named in str(refused.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="chmod 600"):
        read_file(file(tmp_path, GOOD, 0o644))
    with pytest.raises(UserError, match="cannot be read"):
        read_file(tmp_path / "none.yaml")


def test_a_plug_in_that_is_not_there_is_named():
    with pytest.raises(UserError, match="'pager' is no installed plug-in"):
        open_channel(ChannelSpec(name="a", plugin="pager"))


def test_a_notice_goes_to_the_default_channels_or_to_those_that_are_named(tmp_path: Path):
    channels = read_file(file(tmp_path, GOOD))
    assert [each.name for each in targets(channels, None)[0]] == ["ops"]
    found, unknown = targets(channels, ["log", "night"])
    assert ([each.name for each in found], unknown) == (["log"], ["night"])
