"""Text becomes one file of bytes, once; what cannot be read is told in a sentence."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainmaster.errors import SpecError
from worker.data.text import open_corpus


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def folder_of(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "texts"
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_files_of_a_folder_are_joined_in_the_order_of_their_paths(
    tmp_path: Path, cache: Path
) -> None:
    folder = folder_of(tmp_path, b="two", a__z="one", c="three")
    corpus = open_corpus(f"text:{folder}", cache_folder=cache)
    assert bytes(corpus.tokens) == b"onetwothree"
    assert corpus.sha256 == hashlib.sha256(b"onetwothree").hexdigest()


def test_a_second_look_maps_the_same_file_without_reading_the_text(
    tmp_path: Path, cache: Path
) -> None:
    folder = folder_of(tmp_path, a="text")
    first = open_corpus(f"text:{folder}", cache_folder=cache)
    [stored] = (cache / "corpora").glob("*.bytes")
    before = stored.stat().st_mtime_ns
    second = open_corpus(f"text:{folder}", cache_folder=cache)
    assert (first.sha256, before) == (second.sha256, stored.stat().st_mtime_ns)


def test_changed_text_is_another_corpus(tmp_path: Path, cache: Path) -> None:
    folder = folder_of(tmp_path, a="text")
    first = open_corpus(f"text:{folder}", cache_folder=cache)
    (folder / "a").write_text("other text")
    second = open_corpus(f"text:{folder}", cache_folder=cache)
    assert first.sha256 != second.sha256
    assert bytes(second.tokens) == b"other text"


def test_many_at_once_end_with_one_corpus_and_no_leftovers(tmp_path: Path, cache: Path) -> None:
    source = f"text:{folder_of(tmp_path, a='x' * 100_000)}"
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: open_corpus(source, cache_folder=cache), range(8)))
    assert len({corpus.sha256 for corpus in seen}) == 1
    names = sorted(path.suffix for path in (cache / "corpora").iterdir())
    assert names == [".bytes", ".json"]


def test_the_standard_library_is_text_that_every_machine_has(cache: Path) -> None:
    corpus = open_corpus("text:stdlib", cache_folder=cache)
    assert len(corpus.tokens) > 1_000_000
    assert b"def " in bytes(corpus.tokens[:1_000_000])


def test_raw_tokens_are_used_where_they_lie(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(range(256)))
    assert bytes(open_corpus(f"tokens:{path}", cache_folder=cache).tokens) == bytes(range(256))
    assert not cache.exists()


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda folder: None, "neither a file nor a folder"),
        (lambda folder: folder.mkdir(), "holds no files"),
        (lambda folder: (folder.mkdir(), (folder / "a").touch()), "holds no text"),
    ],
    ids=["absent", "no files", "empty files"],
)
def test_a_corpus_that_cannot_be_used_is_told_with_its_field(
    tmp_path: Path, cache: Path, prepare: object, said: str
) -> None:
    folder = tmp_path / "texts"
    prepare(folder)  # type: ignore[operator]
    with pytest.raises(SpecError, match=said) as caught:
        open_corpus(f"text:{folder}", cache_folder=cache)
    assert [problem.path for problem in caught.value.problems] == ["data.source"]


def test_tokens_that_are_not_there_are_told_with_their_path(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        open_corpus(f"tokens:{tmp_path / 'absent'}", cache_folder=cache)
