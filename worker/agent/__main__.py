"""`python -m worker.agent`: the process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path

from trainmaster import logs
from trainmaster.client import Client
from trainmaster.errors import ConflictError, TrainmasterError, UserError
from trainmaster.plugins import add_schedules
from trainmaster.readers import MAY_SEND, Readers, role_at
from trainmaster.wire import Device
from worker.agent import settings as settings_module
from worker.agent.device_watch import Health
from worker.agent.devices import cuda_devices, find_devices
from worker.agent.exporter import Exporter
from worker.agent.loop import Agent
from worker.agent.nest_process import NEST_COMMAND, NestProcess
from worker.agent.nvml import Nvml, open_nvml
from worker.agent.scrapes import serve
from worker.agent.settings import Settings, default_slots
from worker.launch import Emulation

_PR_SET_CHILD_SUBREAPER = 36

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent until it is told to stop; return the exit status."""
    try:
        settings = settings_module.read(arguments)
        logs.begin(settings.log_format, node=settings.node)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        add_schedules()
        run(settings)
    except TrainmasterError as error:
        sys.stderr.write(f"trainmaster agent: {error.message}\n")
        return error.exit_status
    return 0


def run(settings: Settings, *, nest_command: Sequence[str] = NEST_COMMAND) -> None:
    """Run the agent of one node until SIGTERM or SIGINT.

    Raises:
        UserError: the state directory or the metrics port cannot be used.
        ConflictError: another agent runs on the same state directory for the same node.
    """
    settings.home.prepare()
    with sole_agent(settings.home.node(settings.node)):
        _adopt_orphans()
        nvml = open_nvml() if settings.use_cuda else None
        cuda = cuda_devices(nvml, settings.visible_devices) if settings.use_cuda else []
        devices = find_devices(
            cuda=cuda,
            claimed_kind=settings.emulation.kind,
            claimed_memory_bytes=settings.emulation.memory_bytes,
        )
        exporter = Exporter(
            settings.node,
            devices[0].kind,
            health=Health({each.index: each for each in cuda} if nvml is not None else {}),
            link_bytes_per_s=slowest_link_bytes_per_s(settings.emulation),
        )
        metrics_port = _serve_metrics(settings, exporter)
        settings.home.record_process(
            settings.process_name, os.getpid(), f"http://{settings.address}:{metrics_port}"
        )
        nest_before = settings.home.process(settings.nest_name)
        if nest_before is not None:
            nest_before.signal(signal.SIGKILL)
        try:
            _serve_node(settings, nest_command, exporter, devices, nvml, metrics_port)
        finally:
            settings.home.forget_process(settings.process_name, os.getpid())


@contextlib.contextmanager
def sole_agent(folder: Path) -> Iterator[None]:
    """Hold the lock on a node's folder; the kernel lets go of it when this process dies.

    Raises:
        ConflictError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(
                f"another agent already runs on {folder}: give this one another --name or another "
                "TRAINMASTER_HOME",
                code="agent_runs_already",
            ) from error
        yield


def slowest_link_bytes_per_s(emulation: Emulation) -> float | None:
    """Return what the slowest emulated link of a node carries, or None if no capacity is stated."""
    rates = [link.mbps * 1e6 / 8 for link in emulation.links.values() if link.mbps is not None]
    return min(rates, default=None)


def _serve_node(
    settings: Settings,
    nest_command: Sequence[str],
    exporter: Exporter,
    devices: list[Device],
    nvml: Nvml | None,
    metrics_port: int,
) -> None:
    nest = NestProcess(
        nest_command,
        environment=settings.nest_environment,
        log=settings.home.log(settings.nest_name),
    )
    slots = settings.slots or default_slots([device.kind for device in devices])
    with Client(settings.url, settings.token, name=settings.node) as client:
        agent = Agent(
            settings,
            client=client,
            nest=nest,
            exporter=exporter,
            devices=devices,
            nvml=nvml,
            slots=slots,
            metrics_port=metrics_port,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        log.info("agent of node %s: %d slots, %s", settings.node, slots, settings.url)
        agent.run(every_turn=lambda: reap_orphans(nest.pid))
        log.info("agent of node %s has ended", settings.node)


def _serve_metrics(settings: Settings, exporter: Exporter) -> int:
    host = "127.0.0.1" if _is_loopback(settings.address) else "0.0.0.0"
    try:
        role_of = role_at(settings.url)
        readers = Readers(role_of, own=settings.metrics_token)
        server = serve(
            exporter,
            host=host,
            port=settings.metrics_port,
            admit=None if settings.metrics_open else readers.admit,
            take=Readers(role_of, may=MAY_SEND).admit,
        )
    except OSError as error:
        raise UserError(
            f"port {settings.metrics_port} for metrics cannot be used ({error.strerror}): choose "
            "another TRAINMASTER_METRICS_PORT, or 0 for any free one",
            code="port_in_use",
        ) from error
    return int(server.server_address[1])


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _adopt_orphans() -> None:
    """Become the parent of what a dead nest or rank leaves behind, so that somebody reaps it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(nest: int | None) -> None:
    """Reap dead children that this process has inherited; the nest is not one of them."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid == nest:
            return
        os.waitpid(dead.si_pid, 0)


if __name__ == "__main__":
    sys.exit(main())
