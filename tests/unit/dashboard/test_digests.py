from dashboard.digests import digests, environment_told

RUN = {
    "spec": {"name": "a", "train": {"steps": 10}},
    "plan": {"micro_batch": 4, "predicted": {"step_time_s": 0.5}},
    "workload": {
        "code_sha256": "c" * 64,
        "data_sha256": None,
        "environment_sha256": "e" * 64,
        "environment": {"python": "CPython 3.11.2", "torch": "2.13.0"},
    },
}


def test_what_is_not_known_is_left_out() -> None:
    told = digests(RUN)
    assert list(told) == ["spec", "plan", "code", "environment"]
    assert (told["code"], told["environment"]) == ("c" * 64, "e" * 64)
    assert digests({}) == {}


def test_the_environment_is_told_in_a_line_beside_its_digest() -> None:
    assert environment_told(RUN) == "python CPython 3.11.2 · torch 2.13.0"
    assert environment_told({"workload": None}) == ""


def test_equal_specs_have_equal_digests_in_whatever_order_they_are_told() -> None:
    other = {"spec": {"train": {"steps": 10}, "name": "a"}}
    assert digests(other)["spec"] == digests(RUN)["spec"]
    assert digests({"spec": {"name": "b"}})["spec"] != digests(RUN)["spec"]


def test_a_plan_is_the_same_whatever_is_predicted_of_it() -> None:
    slower = {"plan": {"micro_batch": 4, "predicted": {"step_time_s": 0.9}}}
    assert digests(slower)["plan"] == digests(RUN)["plan"]
