"""One fault of each kind that takes no long limit; `faults.py` does hundreds."""

import faults


def test_a_run_ends_as_an_undisturbed_one(two_hosts):
    assert faults.main(["saving=1", "ssh=1", "link=1"]) == 0
