"""The package from Python: its own example as it stands, mistakes as errors of the package."""

import textwrap
from pathlib import Path

import pytest

import hvd_nmt
import toy
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.preparation import embedded

EXAMPLE = textwrap.dedent(hvd_nmt.__doc__.partition("notebook:\n\n")[2].partition("\n\nA note")[0])
AGAIN = """
import sys
done = len(run.intervals), run.state == "finished", run.record.startup_s < 600
run = hvd_nmt.train_model("runs/mine", data, training={"max_steps": 101})
print(*done, run.record.steps_done, *(len(each._repr_html_()) > 200 for each in (run, model)))
"""


@pytest.mark.long
def test_the_example_runs_as_it_stands_and_trains_on(tmp_path: Path) -> None:
    parts = embedded.unpack(tmp_path)
    for part, pairs in (("train", 4000), ("dev", 50)):
        for language, path in zip(("en", "de"), parts[part], strict=True):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            (tmp_path / f"{part}.{language}").write_text("".join(lines[:pairs]), encoding="utf-8")
    code = f"{EXAMPLE}\n{AGAIN}"
    done = toy.python("-c", code, cwd=tmp_path, env=toy.environment(tmp_path))
    *_, last = done.stdout.splitlines()
    assert last == "4 True True 101 True True"
    assert "BLEU   nrefs:1|bs:1000|" in done.stdout
    assert "resuming    from runs/mine/model.ckpt-100" in done.stdout


def test_a_mistake_is_an_error_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^train_model: training: unknown key 'max_step' \(did"):
        hvd_nmt.train_model(tmp_path / "run", training={"max_step": 5})
    with pytest.raises(ConfigError, match=r"put it into training, as \{'max_steps': 3\}"):
        hvd_nmt.train_model(tmp_path / "run", max_steps=3)
    with pytest.raises(ConfigError, match=r"^Unknown preset 'demmo'"):
        hvd_nmt.train_model(tmp_path / "run", preset="demmo")
    with pytest.raises(ConfigError, match=r"vocabulary_sizes \(did you mean 'vocabulary_size'"):
        hvd_nmt.prepare_data(tmp_path / "data", vocabulary_sizes=5, dataset="embedded")
    names = {"train_source": tmp_path / "none", "train_target": tmp_path / "no"}
    with pytest.raises(DataError, match=f"^Preparing {tmp_path}/data: Cannot read {tmp_path}/none"):
        hvd_nmt.prepare_data(tmp_path / "data", dev_size=5, overwrite=False, **names)
    assert [path.name for path in tmp_path.iterdir() if path.name in ("data", "run")] == []


def test_each_public_function_says_its_types_and_what_it_raises() -> None:
    for name in hvd_nmt.__all__:
        said = getattr(hvd_nmt, name).__doc__
        assert "Args:" in said
        assert "Raises" in said
