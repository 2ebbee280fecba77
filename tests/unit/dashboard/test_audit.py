from dashboard.views.audit import particulars


def test_what_an_entry_leaves_open_is_not_read_out() -> None:
    assert particulars({"role": "admin", "node": None, "name": "admin"}) == "role admin, name admin"
    assert particulars({"version": 0}) == "version 0"
    assert particulars({"node": None}) == particulars(None) == ""
