import platform
from importlib import metadata

from worker.environment import environment, environment_sha256


def test_an_environment_is_told_and_digested() -> None:
    digest, told = environment()
    assert digest == environment()[0]
    assert len(digest) == 64
    assert told["python"].endswith(platform.python_version())
    assert told["torch"] == metadata.version("torch")
    assert int(told["packages"]) > 10


def test_another_version_is_another_environment_and_another_order_is_not() -> None:
    before = environment_sha256(["torch==2.13.0", "numpy==2.4.0"])
    assert environment_sha256(["numpy==2.4.0", "torch==2.13.0"]) == before
    assert environment_sha256(["torch==2.13.1", "numpy==2.4.0"]) != before
