import pytest

from control.settings import Settings
from trainmaster.errors import UserError


def test_without_any_setting_it_is_the_embedded_database_on_this_machine():
    settings = Settings.from_environment({})
    assert (settings.host, settings.port, settings.allow_drills) == ("127.0.0.1", 8700, False)
    assert settings.database.startswith("sqlite:////")
    assert settings.database.endswith(".trainmaster/control/trainmaster.db")


def test_settings_are_read_from_the_environment():
    settings = Settings.from_environment(
        {
            "TRAINMASTER_HOME": "/srv/tm",
            "TRAINMASTER_PORT": "0",
            "TRAINMASTER_HOST": "::1",
            "TRAINMASTER_ALLOW_DRILLS": "1",
            "TRAINMASTER_DATABASE_URL": "postgresql+psycopg://tm@db/tm",
        }
    )
    assert str(settings.home.root) == "/srv/tm"
    assert (settings.port, settings.host, settings.allow_drills) == (0, "::1", True)
    assert settings.database == "postgresql+psycopg://tm@db/tm"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "-1"),
        ("PORT", "70000"),
        ("PORT", "x"),
        ("ALLOW_DRILLS", "maybe"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "xml"),
        ("DRAIN_S", "-1"),
        ("DRAIN_S", "soon"),
        ("DRAIN_S", "nan"),
        ("DATABASE_TIMEOUT_S", "0"),
        ("SAMPLES_DAYS", "-1"),
        ("SAMPLES_DAYS", "29"),
        ("SAMPLES_EXACT_DAYS", "1.5"),
        ("SAMPLES_EXACT_DAYS", "366"),
    ],
)
def test_a_setting_that_cannot_be_understood_is_named(name: str, value: str):
    with pytest.raises(UserError, match=f"TRAINMASTER_{name}"):
        Settings.from_environment({f"TRAINMASTER_{name}": value})


def test_it_lingers_only_where_another_control_plane_may_take_over():
    postgresql = {"TRAINMASTER_DATABASE_URL": "postgresql+psycopg://tm@db/tm"}
    assert Settings.from_environment({}).drain_s == 0
    assert Settings.from_environment(postgresql).drain_s == 3
    asked = {"TRAINMASTER_DRAIN_S": "0"}
    assert Settings.from_environment({**postgresql, **asked}).drain_s == 0
    assert Settings.from_environment({"TRAINMASTER_DRAIN_S": "1.5"}).drain_s == 1.5
