"""A run's model as packages of Argos Translate, which LibreTranslate installs, too.

A package is a zip file with one directory: what it is, a CTranslate2 model, the source's
SentencePiece model and a rule that ends sentences. It translates from one language to one other. Of
a model with tags such as <2de> there is one for each direction, and CTranslate2 adds the tag.

Source: argostranslate 1.11, package.py, translate.py and tokenizer.py.
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.run_files import RunDirectory, new_directory, write_record
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.data import language, sentencepiece_model
from hvd_nmt.formats import Quantization, card, ctranslate2, sentence_rule

SEARCH = {
    "beam_size": 4, "patience": 1.0, "length_penalty": 0.2, "min_decoding_length": 1,
    "max_decoding_length": 256, "max_input_length": 1024, "replace_unknowns": True,
}  # fmt: skip
"""how Argos Translate searches: no package can change it"""
_VARIANTS = {
    "zh": ("zt", "Chinese (traditional)", {"hant", "tw", "hk"}),
    "pt": ("pb", "Portuguese (Brazil)", {"br"}),
}
"""language -> its other code there, that one's name, and what in our code asks for it"""


class Direction(NamedTuple):
    """What one package translates; languages as in our data, such as en or pt_BR."""

    source: str
    target: str
    tag: str
    """piece that the model reads before a sentence, such as <2de>; "": none"""

    @property
    def codes(self) -> tuple[str, str]:
        """Source and target as Argos Translate writes them."""
        return _known(self.source)[0], _known(self.target)[0]

    @property
    def name(self) -> str:
        """The name of the package and of the directory in it."""
        return f"translate-{'_'.join(self.codes)}-1_0"

    def unpacked(self, out: Path, folder: Path) -> Path:
        """The CTranslate2 model of the package in `out`, unpacked into a folder."""
        shutil.unpack_archive(out / f"{self.name}.argosmodel", folder, "zip")
        return folder / self.name / "model"


def convert(
    run: Path, checkpoint: str, out: Path, quantization: Quantization, languages: str,
    licence: str = "",
) -> list[Direction]:  # fmt: skip
    """Write a checkpoint as a directory of packages, complete or not at all.

    `languages` are the source's and the target's, such as en-de; "": those of the run's data.
    Raises what `ctranslate2.convert` does; ConfigError: no languages that Argos Translate can name.
    """
    directions, prefix = _directions(run, languages), find(run, checkpoint)
    _require_bytes(run)
    with new_directory(out) as draft:
        model = draft / "model"
        model.mkdir()
        _, start = ctranslate2.write_model(model, run, prefix, quantization)
        for direction in directions:
            folder = draft / direction.name
            shutil.copytree(model, folder / "model")
            _complete(run, folder, direction, start)
            card.write(folder, run, prefix, licence)
            packed = shutil.make_archive(str(folder), "zip", draft, folder.name)
            Path(packed).rename(draft / f"{folder.name}.argosmodel")
            shutil.rmtree(folder)
        shutil.rmtree(model)
        card.write(draft, run, prefix, licence, _readme(run, out, directions))
    return directions


def _directions(run: Path, languages: str) -> list[Direction]:
    data = card.data(run)
    pairs = data.directions if data else []
    if languages:
        known = {"-".join(pair): pair for pair in pairs}
        if not known and languages.count("-") == 1:
            known = {languages: languages.partition("-")[::2]}
        if languages not in known:
            has = ", ".join(known) or "source and target, as in en-de"
            raise ConfigError(f"--languages {languages} is no direction of the run: give {has}.")
        pairs = [known[languages]]
    if not pairs:
        raise ConfigError("The run's data are not here: name the languages, as --languages en-de.")
    tags = sentencepiece_model.tags(RunDirectory(run).vocabularies()[0].read_bytes())
    tagged, directions = sentencepiece_model.languages(tags), []
    for source, target in pairs:
        direction = Direction(source, target, sentencepiece_model.tag_of(target, tags))
        directions.append(direction)
        for code in (source, target):
            language.scripts(code)  # ConfigError: it is none
        if direction.codes[0] == direction.codes[1]:
            raise ConfigError(f"{source}-{target} is one language: give two, as --languages en-de.")
        if tagged and not direction.tag:
            raise ConfigError(
                f"The model has no tag for {target}, only for {', '.join(tagged)}: give languages, "
                f"as in --languages {source}-{tagged[0]}."
            )
    names = [direction.name for direction in directions]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"Argos Translate has one name, {min(twice)}, for several directions of the model: "
            "choose one with --languages."
        )
    return directions


def _known(code: str) -> tuple[str, str]:
    """The code of a language in Argos Translate, and its English name."""
    base = language.base(code)
    other, name, signs = _VARIANTS.get(base, ("", "", set[str]()))
    if signs & {*code.lower().replace("-", "_").split("_")}:
        return other, name
    return base, language.english_name(code)


def _require_bytes(run: Path) -> None:
    """See that the source's pieces, which Argos Translate writes with, have the target's bytes."""
    models = (sentencepiece_model.parsed(p.read_bytes()) for p in RunDirectory(run).vocabularies())
    source, target = (
        {piece.piece for piece in model.pieces if piece.type == sentencepiece_model.BYTE}
        for model in models
    )
    if target - source:
        raise RunError(
            f"{run} has bytes in its target vocabulary only, which Argos Translate would print as "
            "<0xE6>: use --to ctranslate2."
        )


def _complete(run: Path, folder: Path, direction: Direction, start: list[str]) -> None:
    """Make a package of a directory that has its model; `start` is what each target begins with."""
    (source, target), model = direction.codes, folder / "model"
    shutil.copyfile(RunDirectory(run).vocabularies()[0], folder / "sentencepiece.model")
    if direction.tag:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config |= {"add_source_bos": True, "bos_token": sentencepiece_model.SPACE + direction.tag}
        write_record(model / "config.json", config)
    metadata = {
        "package_version": "1.0", "argos_version": "1.9.0",
        "from_code": source, "from_name": _known(direction.source)[1],
        "to_code": target, "to_name": _known(direction.target)[1],
        "target_prefix": "".join(start),
    }  # fmt: skip
    write_record(folder / "metadata.json", metadata)
    (folder / "minisbd").mkdir()
    (folder / "minisbd" / f"{source}.onnx").write_bytes(sentence_rule.model(direction.source))


def _readme(run: Path, out: Path, directions: list[Direction]) -> str:
    source, target = directions[0].codes
    package = shlex.quote(f"{out.name}/{directions[0].name}.argosmodel")
    model = RunDirectory(run).read_config().model
    more = "a longer one is an error" if model.positions == "learned" else "give it no longer ones"
    return f"""\
Packages for Argos Translate and LibreTranslate, made by hvd_nmt.export:
{", ".join(direction.name for direction in directions)}.

    pip install libretranslate
    python -m zipfile -e {package} site/argos-translate/packages
    echo '[]' > site/argos-translate/index.json
    XDG_DATA_HOME=$PWD/site libretranslate --load-only {source},{target}

Without the index LibreTranslate looks for packages in the internet, for minutes if there is none.
The model was trained on sentences of up to {card.trained_length(run)} subword tokens: {more}.
Argos Translate searches with beam 4 and length penalty 0.2. Sentences end by a rule, which knows no
abbreviations: it cuts after "Mr." in "Mr. Smith".
"""
