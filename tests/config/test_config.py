"""Presets, YAML and the command line make one valid tree, or say in a sentence why not."""

import dataclasses
from pathlib import Path
from typing import get_args, get_type_hints

import docstring_parser
import pytest

from hvd_nmt import config as configuration
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, ModelConfig, command_line, serialization
from hvd_nmt.config.mixture import AS_IS, END, Stage
from hvd_nmt.config.schema import Count

PRESETS = configuration.presets()
GOLDEN = Path(__file__).resolve().parents[1] / "golden/run/config.yaml"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(monkeypatch, tmp_path_factory):
    """A person's own hvd_nmt.yaml in the checkout must not change the tests."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


def from_command_line(*argv):
    return command_line.run_config(Config, "hvd_nmt.train", "Train.", argv)


def load_text(path, text):
    path.write_text(text, encoding="utf-8")
    return configuration.load(path)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_explained_and_the_same_from_config_yaml(name, tmp_path):
    line, preset = PRESETS[name]
    assert line
    assert from_command_line("--preset", name) == from_command_line(f"--preset={name}") == preset
    path = tmp_path / "config.yaml"
    configuration.save(preset, path)
    # It names every value: what it is loaded over does not matter.
    assert configuration.load(path) == configuration.load(path, PRESETS["big"][1]) == preset
    assert from_command_line("--config", str(path)) == preset


def test_what_a_run_of_an_older_version_lacks_is_the_schemas_not_the_presets():
    found = from_command_line("--config", str(GOLDEN), "--preset", "small")
    assert (found.training.optimizer, found.training.decay) == ("adam", "transformer_policy")
    assert found == configuration.load(GOLDEN)


def test_no_argument_is_the_demo():
    assert from_command_line() == PRESETS["demo"][1]


def test_base_is_the_recipe():
    base = PRESETS["base"][1]
    # The recipe trains on pairs of up to 56 tokens; the model may read longer ones.
    recipe = ModelConfig(6, 6, 512, 8, 2048, "sinusoidal", base.model.max_length, 0.1, 0.1, 0.1)
    assert base.model == recipe
    assert base.model.max_length >= 56
    training = base.training
    assert (training.learning_rate, training.warmup_steps) == (2.0, 8000)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.997, 1e-9)
    assert training.label_smoothing == 0.1
    assert base.data.vocabulary_size == 32_768


def test_the_command_line_wins_over_files_and_the_last_file_over_the_preset(tmp_path):
    command_line.LOCAL_FILE.write_text("ranks: 4\ntraining: {seed: 7, max_steps: 11}\n")
    file = tmp_path / "c.yaml"
    file.write_text("training: {max_steps: 12, log_every: 3}\n")
    found = from_command_line(
        "--config", str(file), "--ranks", "2", "--preset", "base", "--training.log-every", "4"
    )
    assert found == dataclasses.replace(
        PRESETS["base"][1], ranks=2,
        training=dataclasses.replace(
            PRESETS["base"][1].training, seed=7, max_steps=12, log_every=4
        ),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["x: #'ü", "null", "1e3", "2024-01-31", "a\n  b: c", " x "])
def test_every_value_survives_the_round_trip(text, tmp_path):
    def changed(tree):
        types = get_type_hints(type(tree))
        for field in dataclasses.fields(tree):
            old = getattr(tree, field.name)
            if dataclasses.is_dataclass(old):
                new = changed(old)
            elif isinstance(old, Path):
                new = old / text
            elif types[field.name] == Count:
                new = 8
            elif field.name == "learning_rate":  # no other schedule takes that of the first
                new = 0.0625
            elif field.name == "decay":
                new = "inverse_sqrt"  # the last one needs a cool-down, and others refuse it
            elif field.name == "stages":
                new = (Stage(8, {text: 0.5, "b": AS_IS}), Stage(END, {text: 1.0}))
            elif choices := get_args(types[field.name]):
                new = choices[-1]
            elif isinstance(old, str):
                new = text
            elif isinstance(old, bool):
                new = not old
            elif isinstance(old, float):
                new = old / 3 or 0.1
            else:
                new = old * 2 or 2
            tree = dataclasses.replace(tree, **{field.name: new})
        return tree

    config = changed(Config())
    configuration.save(config, tmp_path / "config.yaml")
    assert configuration.load(tmp_path / "config.yaml") == config
    different = {name for name, _, _ in configuration.differences(Config(), config)}
    assert different == documented_fields().keys()


def test_text_is_text_where_text_is_wanted(tmp_path):
    path = tmp_path / "c"
    path.write_text("no: 1\nname: [on, 1_000, 2024-05-01, ~]\ndate: 1e3\nother: [on, 1_000]\n")
    found = configuration.serialization.read_yaml(path, ["name", "date"])
    assert found == {
        "no": 1, "name": ["on", "1_000", "2024-05-01", None], "date": "1e3", "other": [True, 1000]
    }  # fmt: skip
    found = load_text(
        path, "{run_dir: 2024-05-01, data: {directory: no}, telemetry: {tracker: none}}"
    )
    assert (found.run_dir, found.data.directory) == (Path("2024-05-01"), Path("no"))
    stages = "{data: {stages: [{until: end, weights: {no: 1}}]}}"
    assert load_text(path, stages).data.stages[0].weights == {"no": 1.0}


def test_yaml_numbers_as_people_write_them(tmp_path):
    found = load_text(tmp_path / "c", "training: {adam_epsilon: 1e-9, learning_rate: 1}")
    assert found.training.adam_epsilon == 1e-9
    assert found.training.learning_rate == 1.0
    assert isinstance(found.training.learning_rate, float)


WRONG_FILES = [
    "modle: {width: 8}", "model: {widht: 8}", "zzz: 1", "3: 1", "model: 8", "[1, 2]", "",
    "model:\n  width: 256\n  heads: 4\n  width: 512\n", "model: {width: wide}",
    "model: {width: 256.0}", "model: {width: true}", "model: {width: null}", "run_dir: [a]",
    "model: {dropout: much}", "model: {dropout: true}", "model: {positions: alibi}", "run_dir: {}",
    "training: {precision: fp8}", "training: {precision: [auto]}", "model: {width: 256, heads: 3}",
    "run_dir: &a [x, x]\nmodel: &b [*a, *a]\ndata: [*b, *b]", "model: {width: 128000000}",
]  # fmt: skip
WRONG_OPTIONS = [
    "--model.heads 3", "--model.heads 0", "--model.width -8", "--model.dropout 1",
    "--model.feed-forward-dropout nan", "--training.learning-rate nan",
    "--training.learning-rate inf", "--training.clip-norm -1", "--training.micro-batches 0",
    "--data.vocabulary-size 0", "--evaluation.sentences -1", "--checkpoints.keep 0",
    "--telemetry.interval-s -1", "--ranks -1", "--preset bse", "--preset",
    "--training.exchange islands --training.sync-every 1",
    "--training.decay cosine --training.learning-rate 1",
    "--training.decay linear --training.learning-rate 5e-4 --training.cooldown-steps 9",
    "--training.decay warmup_stable_decay --training.learning-rate 5e-4",
    "--model.start openseq2seq --model.positions learned",
]  # fmt: skip


def test_what_cannot_work_is_a_sentence(tmp_path, monkeypatch, golden_page):
    monkeypatch.chdir(tmp_path)
    said = []
    for text in WRONG_FILES:
        with pytest.raises(ConfigError) as caught:
            load_text(Path("my.yaml"), text)
        said.append(f"{text!r}\n    {caught.value}")
    for options in WRONG_OPTIONS:
        with pytest.raises(ConfigError) as caught:
            from_command_line(*options.split())
        said.append(f"{options}\n    {caught.value}")
    assert [each for each in said if each.count("\n") != 1] == []
    golden_page("configuration-errors.txt", "\n".join(said) + "\n")


def test_what_older_runs_could_choose_is_read_over(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "_FORMER", frozenset({"training.gone", "data.section"}))
    text = "training: {gone: 5, seed: 7}\ndata: {section: {rate: 0.1}}"
    assert load_text(tmp_path / "c", text).training.seed == 7
    with pytest.raises(ConfigError, match="unknown key 'gone'"):
        load_text(tmp_path / "c", "data: {gone: 5}")


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "x").write_bytes(b"ranks: 2\n# \xff\xfe")
    in_x = "line 2 is not UTF-8; save the file as UTF-8"
    for name, why in (("none.yaml", "directory; check its path"), (".", "; check"), ("x", in_x)):
        with pytest.raises(ConfigError, match=f"^Cannot read .*{why}"):
            configuration.load(tmp_path / name)


@pytest.mark.parametrize(("words", "sentence"), [
    ("--model.widht 8", "There is no option --model.widht (did you mean '--model.width'?)"),
    ("--max-steps=8", "There is no option --max-steps (did you mean '--training.max-steps'?)"),
    ("--model.width wide", "--model.width is a whole number, not 'wide'"),
    ("--model.width", "--model.width needs a value"),
    ("--model.norm none", "--model.norm cannot be 'none', only 'pre', 'post'"),
    ("--training.micro-batches all", "--training.micro-batches cannot be 'all'"),
    ("stray", "There is no option stray"),
])  # fmt: skip
def test_a_wrong_command_line_is_a_sentence(words, sentence):
    with pytest.raises(ConfigError) as raised:
        from_command_line(*words.split())
    assert str(raised.value) == sentence + "; python -m hvd_nmt.train --help shows the options."


def documented_fields(kind=Config, prefix=""):
    """Dotted option name and docstring of every field."""
    found = {}
    texts = {entry.arg_name: entry for entry in docstring_parser.parse_from_object(kind).params}
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            found |= documented_fields(hint, f"{prefix}{name}.")
        else:
            found[prefix + name] = texts[name].description if name in texts else None
    return found


@pytest.mark.parametrize("text", [
    "? [a]\n: 1", "training: {seed: 0b_}", "? !!python/object:os.system {}", "a: &x [*x, *x]",
    # Constructors of PyYAML itself that raise other errors than YAMLError.
    "run_dir: 2024-13-45", "[" * 5000, "training: {seed: " + "9" * 5000 + "}",
    "training: {learning_rate: " + "9" * 400 + "}",
], ids=range(8))  # fmt: skip
def test_any_document_gives_a_configuration_or_a_sentence(text):
    path = Path("odd.yaml")
    path.write_text(text)
    said = ""
    try:
        found = configuration.load(path)
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 500
    if not said:
        configuration.save(found, path)
        assert configuration.load(path) == found


def test_help_lists_every_field_with_its_explanation_and_every_preset(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stopped:
        from_command_line("--help-all")
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    flat = " ".join(word for word in said.split() if word not in {"│", "|"})
    fields = documented_fields()
    del fields["data.stages"]  # in a file only
    assert len(fields) > 35
    for name, text in fields.items():
        option = "--" + name.replace("_", "-")
        _, _, after = flat.replace(f"{option}, ", f"{option} ").partition(option + " ")
        assert after, f"{option} is not in --help-all"
        assert " ".join(text.split()) in after[:400], f"{option} lacks its explanation"
    for name, (line, _) in PRESETS.items():
        assert f"--preset {name} {line}" in flat
    assert "--config FILE.yaml" in flat
