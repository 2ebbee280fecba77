import pytest

from dashboard.widgets.addressed import named, tell

OPTIONS = ("step", "time", "tokens")


@pytest.mark.parametrize(
    ("asked", "found"), [("tokens", "tokens"), ("时间", "step"), (None, "step"), ("", "step")]
)
def test_an_address_names_an_option_whatever_a_language_calls_it(
    asked: str | None, found: str
) -> None:
    assert named(asked, OPTIONS) == found


def test_what_is_usual_is_left_out_of_the_address() -> None:
    address = {"run": "r1"}
    tell(address, "axis", OPTIONS, "time")
    assert address == {"run": "r1", "axis": "time"}
    tell(address, "axis", OPTIONS, "step")
    tell(address, "axis", OPTIONS, "step")
    assert address == {"run": "r1"}
