"""Files that people write, read with every problem at its line; and `--set`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.errors import Problem, SpecError, UserError

if TYPE_CHECKING:
    from trainmaster.document import Document

MAX_FILE_BYTES = 8 << 20


class DocumentError(UserError):
    """A file with problems, written one a line as `FILE:LINE: PATH: MESSAGE`."""

    code = "bad_spec"
    http_status = 422

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem_line(file, problem) for problem in self.problems))


def problem_line(file: str, problem: Problem) -> str:
    """Return `FILE:LINE: PATH: MESSAGE` on one line; what belongs to no line is told at line 1."""
    message = " ".join(problem.message.split())
    return f"{file}:{problem.line or 1}: {problem.path or '(document)'}: {message}"


def read_text(path: str) -> str:
    """Return the text of a file that a person named.

    Raises:
        UserError: it is not there, not a file, or not readable.
        DocumentError: it is not text, or too long.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; a file is needed") from error
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        much = f"has more than {MAX_FILE_BYTES >> 20} MiB; it cannot be meant"
        raise DocumentError(path, [Problem("", much)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        told = f"is not a text file: byte {error.start} is not UTF-8; save it as UTF-8"
        raise DocumentError(path, [Problem("", told, line)]) from error


def read_document(path: str) -> Document:
    """Return the YAML document in a file.

    Raises:
        UserError: the file cannot be read.
        DocumentError: it is not text, or not YAML.
    """
    from trainmaster import document

    text = read_text(path)
    with problems_in(path):
        return document.read(text)


@contextmanager
def problems_in(path: str, located: Document | None = None) -> Iterator[None]:
    """Turn a SpecError into a DocumentError about `path`, with the lines of `located`."""
    try:
        yield
    except SpecError as error:
        if located is not None:
            from trainmaster.document import with_lines

            error = with_lines(error, located)
        raise DocumentError(path, error.problems) from error


def apply_settings(value: dict[str, Any], settings: Iterable[str]) -> None:
    """Apply each `key.path=YAMLVALUE` of `--set` to `value`, in place and in order.

    Raises:
        UserError: one has no `=`, no key, a value that is not YAML, or a path through a scalar.
    """
    from trainmaster import document

    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not all(key.split(".")):
            raise UserError(f"--set {setting!r}: write it as key.path=value, e.g. train.steps=100")
        try:
            document.set_path(value, key, document.read(text).value)
        except SpecError as error:
            raise UserError(f"--set {setting!r}: {error.message}") from error


def read_mapping(path: str, settings: Iterable[str] = ()) -> tuple[dict[str, Any], Document]:
    """Return the mapping in a file with `settings` applied, and the document with its lines.

    Raises:
        UserError: the file cannot be read, or a setting cannot be applied.
        DocumentError: it does not hold a mapping.
    """
    document = read_document(path)
    if not isinstance(document.value, dict):
        line = document.line(())
        problem = Problem("", "must be a mapping of keys to values", line)
        raise DocumentError(path, [problem])
    apply_settings(document.value, settings)
    return document.value, document
