"""MLflow: its server on SQLite as a process beside, and the client's synchronous calls."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("mlflow",)
START_S = 300.0
BATCH = 1000
"""What one call may carry at most."""


class MLflow:
    """One `log_metrics` a step."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
        command += ["--default-artifact-root", str(folder / "artifacts")]
        with (folder / "server.log").open("wb") as log:
            self._server = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )
        try:
            _wait_for(f"{url}/health", self._server, folder / "server.log")
            import mlflow

            mlflow.set_tracking_uri(url)
            self._mlflow = mlflow
            self._client = mlflow.MlflowClient(url)
            self._run = mlflow.start_run().info.run_id
        except BaseException:
            self.close()
            raise

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def log_series(self, metric: str, values: list[float]) -> None:
        from mlflow.entities import Metric

        for start in range(0, len(values), BATCH):
            part = [
                Metric(metric, value, 0, step)
                for step, value in enumerate(values[start : start + BATCH], start=start + 1)
            ]
            self._client.log_batch(self._run, metrics=part)

    def finish(self) -> None:
        self._mlflow.end_run()

    def read(self, metric: str) -> int | None:
        return len(self._client.get_metric_history(self._run, metric))

    def close(self) -> None:
        os.killpg(self._server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(timeout=10)
        # Some of its processes outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"mlflow's server did not start:\n{log.read_text()[-2000:]}")


make = MLflow
