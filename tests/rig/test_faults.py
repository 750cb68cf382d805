"""One fault of each kind that takes no long limit; `faults.py` does hundreds."""

import faults
import toy
from launched import checksum


def test_a_run_ends_at_the_weights_of_an_undisturbed_one(two_hosts, toy_data, tmp_path):
    wanted = ["saving", "ssh", "link"]
    steps = faults.STEPS_FOR_A_FAULT * len(wanted) + faults.STEPS_AT_LAST
    faulted = faults.Faulted(tmp_path / "faulted", toy_data, steps, 1, two_hosts.do, 120)
    try:
        done = [faulted.do(kind) for kind in wanted]
        said = faulted.finished().stdout
    finally:
        faulted.run.kill()
    print(faults.table(done))
    for one in done:
        assert one.named, one
        assert one.orphans == 0, one
        assert one.lost_steps <= faults.INTERVAL + 10, one
    alone = toy.run_train(*faults.options(toy_data, steps), ranks=4, cwd=tmp_path / "alone")
    assert checksum(said) == faults.checksum(alone.stdout)
