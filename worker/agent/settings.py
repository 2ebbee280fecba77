"""What the agent takes from its environment and command line: the only reader of either."""

from __future__ import annotations

import argparse
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import psutil
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainmaster import document, logs
from trainmaster.emulation import Link
from trainmaster.errors import SpecError, UserError
from trainmaster.home import DEFAULT_HOME, Home
from trainmaster.ids import node_id_of, node_id_problem
from worker.launch import Emulation

DEFAULT_PORT = 8700
MIN_SLOTS = 4
RETENTION_S = 3600.0
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # the agent makes a folder of its own there
LIBRARY_TUNING = "glibc.cpu.x86_non_temporal_threshold=0x400000"
"""Copies of 4 MiB and more go past the processor's caches, as glibc has it only above a share of
them that can be hundreds of MiB. What a checkpoint copies is next used by a disk: a step waits half
as long, and what the caches hold of training stays there. Elsewhere than on x86 it says nothing.
"""
_SECRETS = ("TRAINMASTER_TOKEN", "TRAINMASTER_TOKEN_FILE", "TRAINMASTER_METRICS_TOKEN")


class ProfileLink(Link):
    """A directed link of a cluster file."""

    model_config = ConfigDict(populate_by_name=True)

    source: Annotated[str, Field(alias="from")]
    target: Annotated[str, Field(alias="to")]


class Profile(BaseModel):
    """What a node says of itself beyond what can be found out: labels, and what it emulates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: dict[str, str] = {}
    emulate: Emulation = Emulation()
    links: list[ProfileLink] = []

    @model_validator(mode="after")
    def _links_once(self) -> Self:
        pairs = Counter((link.source, link.target) for link in self.links)
        twice = [f"{source} to {target}" for (source, target), times in pairs.items() if times > 1]
        if twice:
            raise ValueError(f"more than one link leads from {', '.join(twice)}")
        return self


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one agent.

    Attributes:
        slots: places for ranks; None leaves it to the devices.
        address: the host under which other nodes reach this one.
        metrics_port: 0 for any free port.
        metrics_token: what a scrape may show beside any token that may read at the control plane.
        metrics_open: whether anyone may scrape.
        log_format: lines for people (text), or json.
        process_name: the name under which the agent stands in the process records.
        nest_environment: what the nest and its ranks inherit: no secrets of ours.
        use_cuda: whether CUDA devices are used where there are any.
        visible_devices: CUDA_VISIBLE_DEVICES, which ranks inherit.
        memory: the folder of a file system that lives in memory, for states that outlive their
            ranks; None for none.
        copy_bytes_per_s: how fast checkpoints are copied to their stores at most; 0: no limit.
        retention_s: how long a closed attempt's spools are kept after they are stored.
    """

    url: str
    token: str
    home: Home
    node: str
    slots: int | None
    labels: Mapping[str, str]
    emulation: Emulation
    address: str
    metrics_port: int
    metrics_token: str | None
    metrics_open: bool
    log_format: str
    process_name: str
    nest_environment: Mapping[str, str]
    use_cuda: bool = True
    visible_devices: str | None = None
    memory: Path | None = None
    retention_s: float = RETENTION_S
    copy_bytes_per_s: float = 0.0

    @property
    def nest_name(self) -> str:
        """The nest's name in the process records: `nest`, or `nest:NODE` beside `agent:NODE`."""
        _, colon, node = self.process_name.partition(":")
        return f"nest{colon}{node}"


def read(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Read the command line and the environment; the command line wins.

    Raises:
        UserError: a setting cannot be used, with its name and the mend.
    """
    env = os.environ if environment is None else environment
    options = _parser().parse_args(arguments)
    home = Home(Path(env.get("TRAINMASTER_HOME") or DEFAULT_HOME).absolute())
    node = options.name or env.get("TRAINMASTER_NODE_NAME") or node_id_of(socket.gethostname())
    problem = node_id_problem(node)
    if problem is not None:
        raise UserError(f"the node's name {node!r} {problem} (--name or TRAINMASTER_NODE_NAME)")
    profile_path = options.profile or env.get("TRAINMASTER_PROFILE")
    profile = read_profile(Path(profile_path)) if profile_path else Profile()
    address = env.get("TRAINMASTER_ADDRESS") or "127.0.0.1"
    slots = options.slots or env.get("TRAINMASTER_SLOTS") or None
    port = _number(env, "TRAINMASTER_PORT", DEFAULT_PORT, 65535)
    return Settings(
        url=env.get("TRAINMASTER_URL") or f"http://127.0.0.1:{port}",
        token=_token(env, home, node),
        home=home,
        node=node,
        slots=None if slots is None else _whole("TRAINMASTER_SLOTS (--slots)", slots, 1024),
        labels=profile.labels,
        emulation=emulation_of(profile, node),
        address=address,
        metrics_port=_number(env, "TRAINMASTER_METRICS_PORT", 0, 65535),
        metrics_token=env.get("TRAINMASTER_METRICS_TOKEN") or None,
        metrics_open=_flag(env, "TRAINMASTER_METRICS_OPEN"),
        log_format=logs.asked_format(env.get("TRAINMASTER_LOG_FORMAT", "")),
        process_name=env.get("TRAINMASTER_PROCESS_NAME") or "agent",
        nest_environment=nest_environment(env, home, address),
        use_cuda=_devices(env) == "auto",
        visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
        memory=_memory(env),
        copy_bytes_per_s=float(_number(env, "TRAINMASTER_COPY_BYTES_PER_S", 0, 1 << 50)),
    )


def default_slots(device_kinds: Sequence[str]) -> int:
    """Return one slot per CUDA device, or for a CPU one per core and at least `MIN_SLOTS`."""
    cuda = sum(kind == "cuda" for kind in device_kinds)
    return cuda or max(MIN_SLOTS, os.cpu_count() or 1)


def read_profile(path: Path) -> Profile:
    """Read a profile: YAML or JSON with `labels`, `emulate` and `links`.

    Raises:
        UserError: it cannot be read, with all that is wrong.
    """
    try:
        found = document.read(path.read_text(encoding="utf-8"))
        return Profile() if found.value is None else document.validate(Profile, found)
    except OSError as error:
        raise UserError(
            f"the profile {path} cannot be read: {error.strerror} "
            "(--profile or TRAINMASTER_PROFILE)"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"the profile {path} is neither YAML nor JSON: {error}") from error
    except SpecError as error:
        problems = "; ".join(map(str, error.problems))
        raise UserError(f"the profile {path} is wrong: {problems}") from error


def emulation_of(profile: Profile, node: str) -> Emulation:
    """Return what ranks of `node` emulate: the profile's devices, and its links from this node."""
    links = {
        link.target: Link(**link.model_dump(include=set(Link.model_fields)))
        for link in profile.links
        if link.source == node
    }
    return profile.emulate.model_copy(update={"links": {**profile.emulate.links, **links}})


def nest_environment(env: Mapping[str, str], home: Home, address: str) -> dict[str, str]:
    """Return the environment of ranks: this one without our secrets, with what they need.

    Sums depend on the number of threads, so that is one unless somebody chose otherwise. Gloo and
    NCCL are told the interface of `address`, or they would guess by the machine's name.
    """
    inherited = {name: value for name, value in env.items() if name not in _SECRETS}
    needed = {
        "OMP_NUM_THREADS": "1",
        "GLIBC_TUNABLES": LIBRARY_TUNING,
        "TRAINMASTER_CACHE": str(home.cache),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the driver's tools count
    }
    interface = _interface(address)
    if interface is not None:
        needed |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return needed | inherited


def _interface(address: str) -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None


def _token(env: Mapping[str, str], home: Home, node: str) -> str:
    token = env.get("TRAINMASTER_TOKEN")
    path = env.get("TRAINMASTER_TOKEN_FILE")
    if not token and path:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UserError(
                f"TRAINMASTER_TOKEN_FILE {path} cannot be read: {error.strerror}"
            ) from error
    token = token or home.token(f"agent-{node}")
    if not token:
        raise UserError(
            "the agent needs a token: set TRAINMASTER_TOKEN or TRAINMASTER_TOKEN_FILE to one made "
            f"with `trainmaster token create --role agent --node {node}`",
            code="no_token",
        )
    return token


def _memory(env: Mapping[str, str]) -> Path | None:
    text = env.get("TRAINMASTER_MEMORY") or SHARED_MEMORY
    if text == "off":
        return None
    path = Path(text)
    if not path.is_absolute():
        raise UserError(f"TRAINMASTER_MEMORY is {text!r}; write an absolute path, or off")
    return path


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name) or "0"
    if text not in {"0", "1"}:
        raise UserError(f"{name} is {text!r}; write 1 or 0")
    return text == "1"


def _devices(env: Mapping[str, str]) -> str:
    text = env.get("TRAINMASTER_DEVICES") or "auto"
    if text not in {"auto", "cpu"}:
        raise UserError(f"TRAINMASTER_DEVICES is {text!r}; write auto or cpu")
    return text


def _number(env: Mapping[str, str], name: str, default: int, largest: int) -> int:
    return _whole(name, env[name], largest, least=0) if env.get(name) else default


def _whole(name: str, text: str, largest: int, *, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= largest:
        raise UserError(f"{name} is {text!r}; it must be a whole number from {least} to {largest}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainmaster agent", description="Run ranks on this machine as the control plane asks."
    )
    parser.add_argument("--name", help="the node's id (default: this machine's name)")
    parser.add_argument("--slots", help="places for ranks (default: one per GPU or core)")
    parser.add_argument("--profile", help="YAML or JSON file with labels, emulate and links")
    return parser
