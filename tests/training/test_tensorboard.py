"""What TensorBoard serves of a run, asked through its own HTTP interface."""

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

pytestmark = pytest.mark.long  # it is TensorBoard that is asked


@pytest.fixture(scope="module")
def ask(toy_run):
    """A function from a path of TensorBoard's data API to the answer."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", os.fspath(toy_run / "tensorboard"),
         "--port", "0", "--load_fast", "false", "--reload_interval", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+", line)))

        def get(path, **arguments):
            query = urllib.parse.urlencode(arguments)
            with urllib.request.urlopen(f"{url}data/{path}?{query}", timeout=60) as answer:
                return json.load(answer)

        yield get
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_scalars_of_the_training_and_of_the_host_are_there(ask):
    runs = ask("plugin/scalars/tags")
    assert {"train_loss", "learning_rate", "sacrebleu", "Eval_BLEU_Score"} <= runs["."].keys()
    (host,) = runs.keys() - {"."}
    assert "host/cpu_percent" in runs[host]
    points = ask("plugin/scalars/scalars", run=".", tag="train_loss")
    assert [step for _, step, _ in points] == list(range(1, 41))
    shown = ask("plugin/text/text", run=".", tag="samples")
    assert [entry["step"] for entry in shown] == [20, 40]
    assert "<table>" in shown[0]["text"]
