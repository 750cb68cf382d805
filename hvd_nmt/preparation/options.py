"""The options of `prepare`, and the corpora that they name."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.schema import NaturalInt, PositiveInt, require_limits
from hvd_nmt.data.corpus import SPM_MODEL, SPM_SOURCE_MODEL
from hvd_nmt.preparation import corpus_files, datasets
from hvd_nmt.preparation.cleaning import CleaningRules
from hvd_nmt.preparation.copies import Copying
from hvd_nmt.preparation.corpus_files import CorpusFiles, Input, Paths
from hvd_nmt.preparation.normalization import Rule
from hvd_nmt.preparation.subwords import Learning

_OF_MOSES = ("min_words", "max_words", "max_word_ratio", "longest_word")


@dataclasses.dataclass(frozen=True)
class PreparationOptions:
    """What to prepare."""

    out: Path
    """directory to make"""
    dataset: Literal[datasets.NAMES] | None = None  # type: ignore[valid-type]
    """embedded (the package's), wmt16-en-de or multi30k-en-de; each has dev and test parts"""
    corpora: Path | None = None
    """YAML file that names several corpora, see docs/guide/corpora.md"""
    corpus: tuple[str, ...] = ()
    """training text of both sides in one file: TSV, TMX or zip; or mtdata:ID, of mtdata's index"""
    train_source: Path | None = None
    """training text, a sentence per line; UTF-8, plain or compressed"""
    train_target: Path | None = None
    """translation of the training text, line by line"""
    dev_source: Path | None = None
    """dev text, for validation loss and BLEU while training"""
    dev_target: Path | None = None
    """translation of the dev text"""
    test_source: Path | None = None
    """test text, kept as it is"""
    test_target: Path | None = None
    """translation of the test text"""
    dev_size: NaturalInt = 0
    """training pairs to hold out as dev part; evenly spread, instead of dev files"""
    source_language: str = "en"
    """name of the source language, used in file names"""
    target_language: str = "de"
    """name of the target language, used in file names"""
    mirror: str | None = None
    """address to download the same files of the dataset from"""
    cache: Path = datasets.DEFAULT_CACHE
    """folder that keeps downloads"""
    rules: Annotated[CleaningRules, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=CleaningRules
    )
    """which training pairs are removed"""
    not_utf8: Literal["auto", "stop", "skip"] = "auto"
    """what to do with a pair that is not UTF-8; auto: skip it in a dataset, stop in other text"""
    vocabulary_size: NaturalInt = 0
    """SentencePiece pieces, 0: 8,000 for files; 4,000 for the embedded corpus, 32,768 for
    wmt16-en-de. Of both sides or each; a multiple of 8, rounded up"""
    separate_vocabularies: bool = False
    """learn a vocabulary from each side; for languages that share few words"""
    source_vocabulary_size: NaturalInt = 0
    """with --separate-vocabularies: pieces of the source; 0: as many as of the target"""
    learning: Annotated[Learning, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=Learning
    )
    """how SentencePiece learns the pieces"""
    source_normalization_rule: Rule = "auto"
    """the same of sources; auto: visible where targets have nfc, and unknown characters are read
    as known ones that they stand for; else as targets"""
    vocabulary: Path | None = None
    """SentencePiece model to encode with, such as spm.model of a run; with spm.source.model in the
    same folder for the source"""
    source_vocabulary: Path | None = None
    """SentencePiece model of the source, such as spm.source.model; --vocabulary is the target's"""
    vocabulary_sample: NaturalInt = 1_000_000
    """most pairs to learn pieces from, 0: all; evenly spread"""
    max_length: PositiveInt = 128
    """longest training sentence, subword tokens with eos"""
    too_long: Literal["skip", "truncate"] = "skip"
    """what to do with a training pair that is longer"""
    copying: Annotated[Copying, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Copying)
    """training sentences that are not the same in each epoch"""
    overwrite: bool = False
    """replace a directory of other settings"""
    show: NaturalInt = 0
    """print so many training pairs of each corpus, as the model reads them"""
    removed: bool = False
    """with --show: print those that each rule removed instead"""

    def __post_init__(self) -> None:
        require_limits(self)
        if not self.out.name:
            raise ConfigError("--out is the working directory: give another directory.")
        for part in ("train", "dev", "test"):
            sides = self._sides(part)
            if sides.count(None) == 1:
                raise ConfigError(f"Give both --{part}-source and --{part}-target, or neither.")
            if sides[0] is not None and sides[0] == sides[1]:
                raise ConfigError(
                    f"{sides[0]} is both sides of {part}: give one file per language, or --corpus."
                )
        self._check_origin()
        changed = [
            name for name in _OF_MOSES if getattr(self.rules, name) != getattr(CleaningRules, name)
        ]
        if changed and not self.corpora and self.cleaning.clean != "moses":
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            raise ConfigError(f"{flags} would have no effect: these rules need --clean moses.")
        if self.removed and not self.show:
            raise ConfigError("--removed needs --show, the number of pairs: add --show 20.")
        if self.source_vocabulary_size and not self.separate_vocabularies:
            raise ConfigError("--source-vocabulary-size needs --separate-vocabularies: add it.")
        if self.source_vocabulary and not self.vocabulary:
            raise ConfigError("--source-vocabulary needs --vocabulary (of the target): give both.")
        if self.vocabulary and self.chooses_normalization:
            raise ConfigError(
                f"{self.vocabulary} has its own normalization: remove --normalization-rule and "
                "--source-normalization-rule, or --vocabulary."
            )
        for language in self.languages:
            corpus_files.require_language(language)
        if self.source_language == self.target_language:
            raise ConfigError("--source-language equals --target-language: change one of them.")

    def _check_origin(self) -> None:
        if self.corpora or self.dataset:
            given = self.files or self.corpus or self.dev_size
            if given or (self.corpora and self.dataset):
                raise ConfigError(
                    f"--{'corpora' if self.corpora else 'dataset'} already names all text, with "
                    "its dev part: remove --dev-size and the other options that name text."
                )
        elif "train" not in self.files and not self.corpus:
            raise ConfigError(
                "No text is named: give --train-source and --train-target, --corpus FILE of both "
                "sides, --dataset NAME (embedded needs no download), or --corpora FILE."
            )
        elif ("dev" in self.files) == (self.dev_size > 0):
            raise ConfigError(
                "The dev part must come from one place: give --dev-source and --dev-target, or "
                "--dev-size 1000 to take 1,000 training pairs."
            )
        if self.dataset and self.languages != datasets.TABLE[self.dataset].languages:
            source, target = datasets.TABLE[self.dataset].languages
            raise ConfigError(f"{self.dataset} is {source} to {target}: remove other languages.")

    @property
    def is_public(self) -> bool:
        """Whether the text is a data set that is downloaded."""
        return self.dataset not in (None, "embedded")

    @property
    def files(self) -> dict[str, Paths]:
        """The source and target file of each part that was given."""
        given = ((part, *self._sides(part)) for part in ("train", "dev", "test"))
        return {part: (source, target) for part, source, target in given if source and target}

    def _sides(self, part: str) -> tuple[Path | None, Path | None]:
        return getattr(self, f"{part}_source"), getattr(self, f"{part}_target")

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source_language, self.target_language

    @property
    def pieces(self) -> tuple[int, ...]:
        """SentencePiece pieces to ask for: of the joint vocabulary, or of source and target."""
        usual = datasets.TABLE[self.dataset].vocabulary_pieces if self.dataset else 8000
        pieces = self.vocabulary_size or usual
        if self.separate_vocabularies:
            return self.source_vocabulary_size or pieces, pieces
        return (pieces,)

    @property
    def vocabularies(self) -> tuple[Path, ...]:
        """SentencePiece models that are given: a joint one, or those of source and target."""
        source = self.source_vocabulary
        if self.vocabulary and not source and self.vocabulary.name == SPM_MODEL:
            beside = self.vocabulary.with_name(SPM_SOURCE_MODEL)
            source = beside if beside.exists() else None
        return tuple(filter(None, (source, self.vocabulary)))

    @property
    def normalization_rules(self) -> tuple[Rule, Rule]:
        """Normalization rules of source and target, with `auto` decided."""
        source, target = self.source_normalization_rule, self.learning.normalization_rule
        if target == "auto":
            target = "nmt_nfkc" if self.dataset == "wmt16-en-de" else "nfc"
        if source == "auto":
            source = "visible" if target == "nfc" else target
        return source, target

    @property
    def chooses_normalization(self) -> bool:
        """Whether the command names a rule."""
        return {self.source_normalization_rule, self.learning.normalization_rule} != {"auto"}

    @property
    def cleaning(self) -> CleaningRules:
        """The rules, with `auto` decided: those of Moses for a dataset only."""
        chosen = self.rules.clean
        if chosen == "auto":
            chosen = "moses" if self.is_public else "none"
        return dataclasses.replace(self.rules, clean=chosen)

    @property
    def wrong_bytes(self) -> str:
        """stop or skip: what becomes of a training pair that is not UTF-8."""
        if self.not_utf8 == "auto":
            return "skip" if self.is_public else "stop"
        return self.not_utf8


def find_corpora(options: PreparationOptions) -> list[CorpusFiles]:
    """The corpora with digests, downloaded if need be; ConfigError: of YAML; DataError: no text."""
    if options.corpora:
        return corpus_files.read_corpora(
            options.corpora, options.languages, options.cleaning, options.cache
        )
    paths: dict[str, list[Paths]] = {part: [paths] for part, paths in options.files.items()}
    if options.dataset and options.is_public:
        paths = datasets.download(options.dataset, options.cache, options.mirror)
    for name in options.corpus:
        both = corpus_files.both_sides(name, Path(), options.languages, options.cache)
        paths["train"] = [*paths.get("train", []), both]
    inputs = {part: Input.of(of_part, options.languages) for part, of_part in paths.items()}
    return [CorpusFiles("", options.languages, inputs, options.cleaning, dev_size=options.dev_size)]
