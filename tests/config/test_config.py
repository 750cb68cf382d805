"""Presets, YAML and the command line make one valid tree, or say in a sentence why not."""

import dataclasses
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import get_args, get_type_hints

import docstring_parser
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hvd_nmt import config as configuration
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import AS_IS, END, Config, ModelConfig, Stage, command_line
from hvd_nmt.config.schema import Count

ROOT = Path(__file__).resolve().parents[2]
PRESETS = configuration.presets()


@pytest.fixture(autouse=True)
def _in_an_empty_directory(monkeypatch, tmp_path):
    """A person's own hvd_nmt.yaml in the checkout must not change the tests."""
    empty = tmp_path / "cwd"
    empty.mkdir()
    monkeypatch.chdir(empty)


def from_command_line(*argv):
    return command_line.run_config(argv, prog="hvd_nmt.train", description="Train.")


def load_text(path, text):
    path.write_text(text, encoding="utf-8")
    return configuration.load(path)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_and_explained(name):
    line, preset = PRESETS[name]
    assert line
    assert from_command_line("--preset", name) == from_command_line(f"--preset={name}") == preset


def test_no_argument_is_the_demo_and_no_run_directory_is_shared():
    assert from_command_line() == PRESETS["demo"][1]
    assert len({preset.run_dir for _, preset in PRESETS.values()}) == len(PRESETS)


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


def test_the_command_line_wins_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("training: {seed: 7, max_steps: 11}\nranks: 3\n")
    found = from_command_line(
        "--training.max-steps", "12", "--preset", "base", "--config", str(file)
    )
    assert (found.training.max_steps, found.training.seed, found.ranks) == (12, 7, 3)
    assert found.model == PRESETS["base"][1].model
    assert found.training.tokens_per_step == PRESETS["base"][1].training.tokens_per_step


def test_defaults_of_a_directory_win_over_the_preset_alone(tmp_path):
    command_line.LOCAL_FILE.write_text("ranks: 4\ntraining: {seed: 7, max_steps: 11}\n")
    file = tmp_path / "c.yaml"
    file.write_text("training: {max_steps: 12}\n")
    found = from_command_line("--config", str(file), "--ranks", "2", "--preset", "base")
    assert (found.ranks, found.training.seed, found.training.max_steps) == (2, 7, 12)
    assert found.model == PRESETS["base"][1].model


@pytest.mark.parametrize("name", PRESETS)
def test_config_yaml_of_a_run_is_the_same_configuration(name, tmp_path):
    preset = PRESETS[name][1]
    configuration.save(preset, tmp_path / "config.yaml")
    assert configuration.load(tmp_path / "config.yaml") == preset
    # It names every value: what it is loaded over does not matter.
    assert configuration.load(tmp_path / "config.yaml", PRESETS["big"][1]) == preset
    assert from_command_line("--config", str(tmp_path / "config.yaml")) == preset


@pytest.mark.parametrize(
    "text", ["x: #'ü", "no", "null", "1e3", "007", "2024-01-31", "a\n  b: c", " x ", "*x", "\u2028"]
)
def test_every_value_survives_the_round_trip(text, tmp_path):
    def changed(tree):
        types = get_type_hints(type(tree))
        for field in dataclasses.fields(tree):
            old = getattr(tree, field.name)
            if dataclasses.is_dataclass(old):
                new = changed(old)
            elif isinstance(old, Path):
                new = old / text
            elif types[field.name] is Count:
                new = 8
            elif field.name == "learning_rate":  # no other schedule takes that of the first
                new = 0.0625
            elif field.name == "decay":
                new = "inverse_sqrt"  # the last one needs a cool-down, and others refuse it
            elif field.name == "islands":  # without, some other values would be refused
                new = "hosts"
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


def test_differences_name_old_and_new():
    assert list(configuration.differences(Config(), Config())) == []
    other = Config(ranks=4, model=ModelConfig(heads=8))
    found = list(configuration.differences(Config(), other))
    assert found == [("ranks", 0, 4), ("model.heads", 4, 8)]


def test_yaml_numbers_as_people_write_them(tmp_path):
    found = load_text(tmp_path / "c", "training: {adam_epsilon: 1e-9, learning_rate: 1}")
    assert found.training.adam_epsilon == 1e-9
    assert found.training.learning_rate == 1.0
    assert isinstance(found.training.learning_rate, float)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: {width: 8}", ["'modle'", "'model'"]),
        ("model: {widht: 8}", ["'widht'", "'width'", "model"]),
        ("zzz: 1", ["'zzz'"]),
        ("3: 1", ["3"]),
        ("model:\n  width: 256\n  heads: 4\n  width: 512\n", ["line 4: width has a value already"]),
        ("model: 8", ["model", "mapping", "8"]),
        ("model: {width: wide}", ["model: width", "int", "'wide'"]),
        ("model: {width: 256.0}", ["width", "int", "256.0"]),
        ("model: {width: true}", ["width", "int", "True"]),
        ("model: {width: null}", ["width", "None"]),
        ("model: {dropout: much}", ["dropout", "float", "'much'"]),
        ("model: {dropout: true}", ["dropout", "float", "True"]),
        ("run_dir: 3", ["run_dir", "3"]),
        ("run_dir: [a]", ["run_dir", "['a']"]),
        ("model: {positions: rotary}", ["positions", "sinusoidal", "learned", "'rotary'"]),
        ("training: {precision: fp8}", ["precision", "bfloat16", "'fp8'"]),
        ("training: {precision: [auto]}", ["precision", "['auto']"]),
        ("[1, 2]", ["mapping"]),
        ("", ["mapping"]),
        ("a: [", ["cannot be read"]),
        ("a: \x01", ["cannot be read"]),
        ("model: {width: 256, heads: 3}", ["256", "3", "6"]),
        # Constructors of PyYAML itself that raise other errors than YAMLError.
        ("run_dir: 2024-13-45", []),
        ("training: {seed: " + "9" * 5000 + "}", []),
        ("training: {learning_rate: " + "9" * 400 + "}", []),
        ("a: &x [*x, *x]", []),
        ("[" * 5000, []),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_wrong_file_is_one_sentence_with_its_name(text, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path / "my.yaml", text)
    message = str(caught.value)
    assert "my.yaml" in message or "model." in message
    assert "\n" not in message
    assert len(message) < 500
    for word in words:
        assert word in message


def test_a_file_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            configuration.load(path)
    (tmp_path / "x").write_bytes(b"ranks: \xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        configuration.load(tmp_path / "x")


def test_unknown_preset_gets_the_nearest():
    with pytest.raises(ConfigError, match=r"'bse'.*'base'.*demo, small"):
        from_command_line("--preset", "bse")
    with pytest.raises(ConfigError, match="needs a value"):
        from_command_line("--preset")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model.widht", "8"], "--model.width"),
        (["--model.width", "wide"], "'wide'"),
        (["--model.positions", "rotary"], "learned"),
        (["stray"], "stray"),
        (["--training.max-steps"], "--training.max-steps"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(argv, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        from_command_line(*argv)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_another_rank_lets_the_first_speak(capsys, monkeypatch):
    """Its command line is the same, but its version may be another."""
    before = []
    monkeypatch.setattr(
        command_line, "let_first_rank_speak", lambda: before.append(capsys.readouterr())
    )
    with pytest.raises(SystemExit):
        command_line.run_config(["--wrong"], prog="x", description="x", quiet=True)
    assert before == [("", "")]
    assert "--wrong" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--model.heads", "3"], ["128", "3", "multiple of 6"]),
        (["--model.heads", "0"], ["0"]),
        (["--model.width", "-8"], ["-8"]),
        (["--model.width", "0"], ["0"]),
        (["--model.dropout", "1"], ["model.dropout", "1.0"]),
        (["--model.attention-dropout", "-0.1"], ["attention_dropout", "-0.1"]),
        (["--model.feed-forward-dropout", "nan"], ["feed_forward_dropout", "nan"]),
        (["--model.max-length", "0"], ["max_length", "0"]),
        (["--training.label-smoothing", "1"], ["label_smoothing", "1.0"]),
        (["--training.max-steps", "0"], ["max_steps", "0"]),
        (["--training.learning-rate", "-2"], ["learning_rate", "-2"]),
        (["--training.learning-rate", "nan"], ["learning_rate", "nan"]),
        (["--training.learning-rate", "inf"], ["learning_rate", "inf"]),
        (["--training.clip-norm", "-1"], ["clip_norm", "-1"]),
        (["--training.adam-beta1", "1"], ["adam_beta1", "1.0"]),
        (["--training.adam-beta2", "-0.5"], ["adam_beta2", "-0.5"]),
        (["--training.seed", "-1"], ["seed", "-1"]),
        (["--data.vocabulary-size", "0"], ["vocabulary_size", "0"]),
        (["--evaluation.beam-size", "0"], ["beam_size", "0"]),
        (["--evaluation.sentences", "-1"], ["sentences", "-1"]),
        (["--evaluation.samples", "-1"], ["samples", "-1"]),
        (["--evaluation.length-penalty", "nan"], ["length_penalty", "nan"]),
        (["--checkpoints.keep", "0"], ["keep", "0"]),
        (["--telemetry.interval-s", "-1"], ["interval_s", "-1"]),
        (["--ranks", "-1"], ["ranks", "-1"]),
    ],
    ids=lambda value: value[0] if value[0].startswith("--") else "",
)
def test_values_that_cannot_work_are_named(argv, words):
    with pytest.raises(ConfigError) as caught:
        from_command_line(*argv)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


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


KEYS = sorted({key for name in documented_fields() for key in name.split(".")})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.dates()
SCALARS |= st.sampled_from(["auto", "learned", "files", "1e3", "nan", 10**400])
SCALARS |= st.text(max_size=8)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | SCALARS, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.text(max_size=60)
    | st.dictionaries(st.sampled_from(KEYS), DOCUMENTS, max_size=4).map(yaml.safe_dump)
    | DOCUMENTS.map(yaml.safe_dump)
)
@example("? [a]\n: 1")
@example("2024-99-99")
@example("training: {seed: 0b_}")
@example("? !!python/object:os.system {}")
def test_any_document_gives_a_configuration_or_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = configuration.load(path)
    except ConfigError:
        return
    assert isinstance(found, Config)
    configuration.save(found, path)
    assert configuration.load(path) == found


def test_every_field_says_what_it_means():
    found = documented_fields()
    assert len(found) > 35
    assert [name for name, text in found.items() if not text] == []


def test_help_lists_every_field_with_its_explanation_and_every_preset(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stopped:
        from_command_line("--help")
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    flat = " ".join(word for word in said.split() if word not in {"│", "|"})
    for name, text in documented_fields().items():
        option = "--" + name.replace("_", "-")
        _, _, after = flat.replace(f"{option}, ", f"{option} ").partition(option + " ")
        assert after, f"{option} is not in --help"
        assert " ".join(text.split()) in after[:400], f"{option} lacks its explanation"
    for name, (line, _) in PRESETS.items():
        assert f"--preset {name} {line}" in flat
    assert "--config FILE.yaml" in flat


def test_init_from_has_a_short_name():
    for words in (["--init-from", "runs/x"], ["--init-from=runs/x"]):
        assert from_command_line(*words).training.init_from == "runs/x"


def test_prose_of_help_is_wrapped_and_examples_are_not(capsys, monkeypatch):
    """A paragraph of any length stays within the terminal; an example keeps its line."""
    monkeypatch.setenv("COLUMNS", "60")
    example = "    python -m hvd_nmt.train " + "--model.width 16 " * 5
    prose = "Each word of this goes on and on, " * 6
    lines = "\n".join(["Train.", "", example, "", prose, "and so does this.", "", "- a list"])
    with pytest.raises(SystemExit):
        command_line.run_config(["--help"], prog="x", description=lines)
    said = capsys.readouterr().out.split("Presets")[0].splitlines()
    assert example.rstrip() in [line.rstrip() for line in said]
    wrapped = [line for line in said if "goes on" in line or "so does" in line]
    assert len(wrapped) >= 4
    assert max(map(len, wrapped)) <= 60
    assert " ".join(" ".join(wrapped).split()) == " ".join(f"{prose}and so does this.".split())
    assert "- a list" in said
    assert ("", "") not in pairwise(said)  # one blank line between paragraphs, as written


def test_explanations_fill_their_lines(capsys, monkeypatch):
    """No line of an explanation ends where the next word would have had room."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        from_command_line("--help")
    said = capsys.readouterr().out.splitlines()
    broken = [
        (row[1:-1].strip(), below[1:-1].strip())
        for row, below in pairwise(said)
        if row[1:8].isspace() and below[1:8].isspace() and row[8:9].strip() and below[8:9].strip()
    ]
    assert len(broken) > 10
    assert [row for row, below in broken if len(f"{row} {below.split()[0]}") < 90] == []


def test_no_heavy_module_is_imported():
    code = (
        "import sys, hvd_nmt.config, hvd_nmt.common.errors\n"
        "print({'tensorflow', 'tf_keras', 'keras', 'horovod', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT) == b"set()\n"
