"""Every notebook runs from top to bottom on a fresh small run, and is kept without outputs."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import toy

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
WANTED = {
    "01_run_and_network": (6, "How long did the run take?", "How does step time relate",
                           "of each step", "share of the step"),
    "02_checkpoints": (2, "model.ckpt-40.index", "predicted to the byte: True",
                       "the embedding is the same: True", "mean of the last 3",
                       "best single checkpoint: ", "no moving average in this run"),
    "03_attention_and_errors": (2, "chrF", "24 dev sentences"),
}  # fmt: skip
"""how many figures there must be at least, and what the outputs must say"""
MOST_LINES_OF_A_CELL = 16


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_without_outputs_in_short_cells(path: Path) -> None:
    assert [path.stem for path in NOTEBOOKS] == list(WANTED)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert max(len(cell.source.splitlines()) for cell in code) <= MOST_LINES_OF_A_CELL
    assert 'os.environ.get("HVD_NMT_RUN", "runs/demo")' in code[0].source


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_shows_what_it_promises(
    path: Path, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", os.fspath(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    run_dir = tmp_path / "run"
    shutil.copytree(toy_run, run_dir)
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3",
        resources={"metadata": {"path": os.fspath(tmp_path)}},
    )  # fmt: skip
    environment = toy.environment(tmp_path) | {"HVD_NMT_RUN": os.fspath(run_dir)}
    client.execute(env=environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("text", "") for output in outputs]
    shown += [output.data.get("text/html", "") for output in outputs if "data" in output]
    fewest_figures, *wanted = WANTED[path.stem]
    for words in wanted:
        assert any(words in text for text in shown), words
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert figures + sum(text.count("<svg") for text in shown) >= fewest_figures
    assert [text for text in shown if "Warning:" in text] == []  # of Python
