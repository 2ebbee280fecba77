"""A control plane made of prepared answers, for commands that speak to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainmaster.errors import NotFoundError, TrainmasterError

Answer = Any | TrainmasterError | Callable[[Any], Any]


class FakeApi:
    """Answers by method and path. Several for one path are given in turn, the last one for good.

    Attributes:
        asked: (method, path, body or query) of each call, in order.
    """

    def __init__(self, answers: dict[str, Sequence[Answer]]) -> None:
        self._answers = {key: list(value) for key, value in answers.items()}
        self.asked: list[tuple[str, str, Any]] = []

    def get(self, path: str, **query: Any) -> Any:
        wanted = {name: value for name, value in query.items() if value is not None}
        return self._answer("GET", path, wanted)

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        return self._answer("POST", path, body)

    def put(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any:
        return self._answer("PUT", path, body)

    def delete(self, path: str) -> Any:
        return self._answer("DELETE", path, None)

    def close(self) -> None:
        pass

    def bodies(self, method: str, path: str) -> list[Any]:
        """What was sent there."""
        return [body for verb, where, body in self.asked if (verb, where) == (method, path)]

    def _answer(self, method: str, path: str, body: Any) -> Any:
        self.asked.append((method, path, body))
        prepared = self._answers.get(f"{method} {path}")
        if prepared is None:
            raise NotFoundError(f"there is nothing at {method} {path}")
        answer = prepared.pop(0) if len(prepared) > 1 else prepared[0]
        if isinstance(answer, TrainmasterError):
            raise answer
        return answer(body) if callable(answer) else answer


class FakeClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now
