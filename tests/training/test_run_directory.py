"""The run directory: one run at a time, and only the run it was made for."""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ClusterError, RunError, UserError
from hvd_nmt.config import Config, ModelConfig, TrainingConfig
from hvd_nmt.config.mixture import END, Stage
from hvd_nmt.data import corpus
from hvd_nmt.training import horovod, resume, run_directory
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.setup import RunSetup

FIRST = Rank(0, 2, 0, 2, "v100a")


@pytest.fixture
def data(toy_data: Path) -> corpus.DataDirectory:
    return corpus.load(toy_data)


def describe(run_dir: Path, config: Config, data: corpus.DataDirectory) -> list[str]:
    """Describes a run and returns what was logged."""
    logged: list[str] = []
    config = dataclasses.replace(config, run_dir=run_dir)
    setup = RunSetup(config, FIRST, ["größe"], ["CPU"], data, None, "float32")
    resume.require_same_run(config, data.manifest, None, logged.append)
    run_directory.describe(setup, "a1b2")
    return logged


def test_second_run_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    holder = f"process {os.getpid()} on v100a"
    with run_directory._hold(tmp_path, FIRST):
        for _ in range(2):  # and the first keeps its name in the lock
            with pytest.raises(RunError, match=f"Another run is in .*{holder}"):
                run_directory._hold(tmp_path, FIRST)
    run_directory._hold(tmp_path, FIRST).close()  # an ended run leaves no lock


def test_a_full_disk_at_the_start_names_the_folder(tmp_path: Path) -> None:
    wanted = f"Cannot write the run directory {tmp_path} on v100a .No space left on device.: make"
    with (
        pytest.raises(ClusterError, match=wanted),
        run_directory.writing(tmp_path, "v100a"),
        Path("/dev/full").open("w", encoding="utf-8") as full,
    ):
        full.write("configuration")


def test_a_run_directory_explains_itself(tmp_path: Path, data: corpus.DataDirectory) -> None:
    config = Config(run_dir=tmp_path, training=TrainingConfig(max_steps=7))
    for _ in range(3):
        assert describe(tmp_path, config, data) == []
    assert configuration.load(tmp_path / "config.yaml") == config
    environment = json.loads((tmp_path / "environment.json").read_text(encoding="utf-8"))
    assert (environment["hosts"], environment["precision"]) == (["größe"], "float32")
    commands = (tmp_path / "command.txt").read_text(encoding="utf-8").splitlines()
    assert len(commands) == 3  # one for each start
    assert not list(tmp_path.glob(".*"))


def test_another_vocabulary_is_refused(tmp_path: Path, data: corpus.DataDirectory) -> None:
    describe(tmp_path, Config(), data)
    vocabulary = tmp_path / "spm.model"
    vocabulary.write_bytes(vocabulary.read_bytes()[:-1] + b"?")  # of the same size
    with pytest.raises(RunError, match="another vocabulary"):
        describe(tmp_path, Config(), data)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model": ModelConfig(width=128)}, "model.width"),
        ({"training": TrainingConfig(seed=2)}, "training.seed"),
        ({"training": TrainingConfig(tokens_per_step=2048)}, "training.tokens_per_step"),
        ({"data": configuration.DataConfig(stages=(Stage(END, {"a": 1.0}),))}, "data.stages"),
    ],
)
def test_what_decides_the_run_may_not_change(
    tmp_path: Path, data: corpus.DataDirectory, change: dict, name: str
) -> None:
    describe(tmp_path, Config(), data)
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(RunError, match=name):
        describe(tmp_path, dataclasses.replace(Config(), **change), data)
    assert (tmp_path / "config.yaml").read_bytes() == before


def test_what_may_change_is_written_and_said(tmp_path: Path, data: corpus.DataDirectory) -> None:
    describe(tmp_path, Config(), data)
    training = TrainingConfig(learning_rate=1.0, precision="float16")
    longer = Config(training=training, checkpoints=configuration.CheckpointConfig(keep=9))
    assert describe(tmp_path, longer, data) == [
        "Changed since this run was started: training.learning_rate 2.0 -> 1.0",
        "Changed since this run was started: training.precision auto -> float16",
        "Changed since this run was started: checkpoints.keep 3 -> 9",
        "From step 1 the learning rate is 8.73e-08, by the old settings 1.75e-07.",
    ]
    found = configuration.load(tmp_path / "config.yaml")
    assert found == dataclasses.replace(longer, run_dir=tmp_path)


@pytest.mark.parametrize(
    ("wanted", "start", "used"),
    [
        ("auto", None, "char"), ("zh", None, "zh"), ("auto", {}, "13a"), ("13a", {}, "13a"),
        ("zh", {}, "with evaluation.tokenize 13a, not zh"),
        ("auto", {"tokenizers": {"": "zh"}}, "zh"),
        ("char", {"tokenizers": {"": "zh"}}, "with evaluation.tokenize zh, not char"),
        ("auto", {"tokenizers": {"": "ja-mecab"}}, "pip install 'sacrebleu[ja]'"),
    ],
)  # fmt: skip
def test_bleu_keeps_the_tokenizer_that_the_run_began_with(
    tmp_path: Path, data: corpus.DataDirectory, monkeypatch: pytest.MonkeyPatch, wanted: str,
    start: dict | None, used: str,
) -> None:  # fmt: skip
    """Of a Thai target; {}: a run of the version before, which knew only 13a."""
    if start is not None:
        line = {"time_s": 1.0, "kind": "start", "first_step": 1} | start
        (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    data = dataclasses.replace(
        data, manifest=dataclasses.replace(data.manifest, target_language="th")
    )
    config = Config(run_dir=tmp_path, evaluation=configuration.EvaluationConfig(tokenize=wanted))
    setup = RunSetup(config, horovod.init(), ["a"], ["CPU"], data, None, "float32")
    before = RunDirectory(tmp_path).read_metrics()
    directories = run_directory.HostDirectories((0,), 0, "a1b2", None, None, before)
    if " " not in used:
        assert run_directory.with_tokenizers(setup, directories).tokenizers == {"": used}
        return
    with pytest.raises(UserError, match=re.escape(used)):
        run_directory.with_tokenizers(setup, directories)
