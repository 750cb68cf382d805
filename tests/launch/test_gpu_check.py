"""launch/gpu-check.sh, tried out on the processor: one table, a row for each thing measured."""

import subprocess
import sys
from pathlib import Path

import pytest

import toy

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "gpu-check.sh"


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.long
def test_it_writes_one_table(toy_data, tmp_path):
    small = " ".join(toy.SMALL[: toy.SMALL.index("--training.precision")])
    env = toy.environment(tmp_path) | {
        "VENV": sys.prefix, "PRESETS": "demo", "PRECISIONS": "float32 float64", "STEPS": "2",
        "OPTIONS": f"--training.device cpu --data.directory {toy_data} --data.corpus files {small}",
    }  # fmt: skip
    done = subprocess.run(
        [SCRIPT, "table.md"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "table.md").read_text()
    assert done.stdout == text
    assert "TensorFlow" in text
    rows = [cells(line) for line in text.splitlines() if line.startswith("| demo")]
    *trained, refused, refused_too = rows
    assert [row[0] for row in trained] == ["demo, float32, XLA off", "demo, float32, XLA on"]
    units = ("", "", "FLOP/s", "%", "%", "B")
    for row in trained:
        assert float(row[1].replace(",", "")) > 0 < float(row[2])
        assert all(cell.endswith(unit) for cell, unit in zip(row[1:7], units, strict=True)), row
    # A precision that does not exist takes its rows, and no others.
    assert [row[0] for row in (refused, refused_too)] == [
        "demo, float64, XLA off", "demo, float64, XLA on"
    ]  # fmt: skip
    assert "float64" in refused[1]
