"""The small files of a run, brought to another copy of it."""

import json

import pytest

from hvd_nmt.checkpoints import records
from hvd_nmt.checkpoints.records import Records
from hvd_nmt.common.errors import RunError


def test_each_change_travels_once_and_to_the_byte(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (there / "metrics.jsonl").write_bytes(b"of an earlier start\n" * 9)
    (here / "spm.model").write_bytes(bytes(range(256)))
    (here / "metrics.jsonl").write_bytes("1 ä\n2 \U0001f600\n".encode())
    made = Records(here)
    sizes = []
    for number in range(3):
        if number:
            (here / "config.yaml").write_text(f"a: {number}\n", encoding="utf-8")
            with (here / "metrics.jsonl").open("ab") as stream:
                stream.write(b"more\n")
        changes = json.loads(json.dumps(made.changes()))
        records.put(there, changes)
        records.put(there, changes)  # a second time, as after a failure half way
        sizes.append((sorted(changes["files"]), len(changes["metrics"])))
        for path in here.iterdir():
            assert (there / path.name).read_bytes() == path.read_bytes()
    assert sizes == [(["spm.model"], 12), (["config.yaml"], 5), (["config.yaml"], 5)]
    assert made.changes() == {"files": {}, "offset": 22, "metrics": ""}


def test_metrics_with_a_hole_are_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"short\n")
    with pytest.raises(RunError, match="was cut"):
        records.put(tmp_path, {"files": {}, "offset": 100, "metrics": "more\n"})
