"""The digest of a workload's code follows its whole package, and nothing beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from worker.model.code_digest import code_sha256


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that modules are imported from."""
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))


def package(folder: Path) -> tuple[str, Path]:
    """Write a package whose workload leaves its layers to another module."""
    name = f"package_{uuid4().hex}"
    where = folder / name
    (where / "parts").mkdir(parents=True)
    (where / "__init__.py").write_text("")
    (where / "parts" / "layers.py").write_text("WIDTH = 8\n")
    (where / "training.py").write_text("def workload(): ...\n")
    return f"{name}.training:workload", where


def test_a_change_in_any_module_of_the_package_shows_imported_or_not(folder: Path) -> None:
    path, where = package(folder)
    before = code_sha256(path)
    (where / "parts" / "layers.py").write_text("WIDTH = 9\n")
    assert code_sha256(path) != before
    (where / "parts" / "layers.py").write_text("WIDTH = 8\n")
    assert code_sha256(path) == before


def test_what_is_no_code_and_what_is_hidden_does_not_count(folder: Path) -> None:
    path, where = package(folder)
    before = code_sha256(path)
    (where / "notes.txt").write_text("of one node")
    (where / ".venv").mkdir()
    (where / ".venv" / "other.py").write_text("other = True\n")
    assert code_sha256(path) == before


def test_the_same_package_under_another_folder_has_the_same_digest(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, where = package(folder)
    before = code_sha256(path)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    where.rename(elsewhere / where.name)
    for name in [each for each in sys.modules if each.partition(".")[0] == where.name]:
        del sys.modules[name]
    sys.path.insert(0, str(elsewhere))
    assert code_sha256(path) == before
    sys.path.remove(str(elsewhere))


def test_of_a_module_without_a_package_its_own_source_counts(folder: Path) -> None:
    name = f"module_{uuid4().hex}"
    (folder / f"{name}.py").write_text("def workload(): ...\n")
    before = code_sha256(f"{name}:workload")
    (folder / "beside.py").write_text("other = True\n")
    assert code_sha256(f"{name}:workload") == before
    (folder / f"{name}.py").write_text("def workload(): return None\n")
    assert code_sha256(f"{name}:workload") != before
