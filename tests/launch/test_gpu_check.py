"""launch/gpu-check.sh, tried out on the processor: every part, row by row."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import toy

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "gpu-check.sh"
UNITS = {2: "FLOP/s", 3: "%", 4: "B"}
"""of the columns of training"""


@pytest.mark.long
def test_it_runs_every_part(toy_data, tmp_path):
    small = " ".join(toy.SMALL[: toy.SMALL.index("--training.precision")])
    env = toy.environment(tmp_path) | {
        "VENV": sys.prefix, "PATIENCE": "10", "PRESETS": "demo", "PRECISIONS": "float32 float64",
        "STEPS": "6", "SIZE": "64", "SENTENCES": "20", "LENGTH": "5", "VOCABULARY": "0",
        "TRUTH_PRESET": "demo", "RUN_STEPS": "800", "DATA": str(toy_data),
        "OPTIONS": f"--training.device cpu {small}", "PEER_PYTHON": sys.executable,
    }  # fmt: skip
    done = subprocess.run(
        [SCRIPT, "out"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "out/gpu-check.log").read_text()
    page = (tmp_path / "out/gpu-check.md").read_text()
    assert done.stdout == page
    assert page.count("no torch and transformers") == 2  # which are no dependency of ours
    assert "Telemetry is not compared" in page
    assert "2^30 → 2^29" in page
    assert "TOO FAR" not in page

    lines = (tmp_path / "out/gpu-check.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    rows = {(one["part"], one["row"]): one for one in records if "row" in one}
    graph, refused, compiled, refused_too = (
        rows["speed", f"demo, {precision}, XLA {xla}"]
        for xla in ("off", "on") for precision in ("float32", "float64")
    )  # fmt: skip
    assert graph["tokens_per_s"] > 0 < compiled["tokens_per_s"]
    assert len(graph["step_s"]) == len(compiled["step_s"]) == 6
    # A precision that does not exist takes its rows, and no others.
    assert refused["failed"] is refused_too["failed"] is True
    assert page.count("'float64', only") == 2
    cells = [cell.strip() for cell in page.partition("| demo, float32, XLA off |")[2].split("|")]
    assert all(cells[place].endswith(unit) for place, unit in UNITS.items()), cells
    went = [one["result"] for one in records if one["part"] == "run" and "result" in one]
    assert ["checksum" in result for result in went].count(True) == 2
    assert "resuming" in went[1]
    assert not any("exit code" in result for result in went)
