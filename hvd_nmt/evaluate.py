"""Score translations: BLEU, chrF2 and TER, with intervals, significance and signatures.

    python -m hvd_nmt.evaluate --run runs/demo
    python -m hvd_nmt.evaluate --run runs/demo --checkpoint best latest model.ckpt-600 --part test
    python -m hvd_nmt.evaluate --run runs/demo --test-set wmt20
    python -m hvd_nmt.evaluate --run runs/demo --source a.en --reference a.de --hypotheses their.de
    python -m hvd_nmt.evaluate --reference a.de b.de --hypotheses first.de second.de

Model and text: --run --checkpoint --part --test-set --source --reference --hypotheses --keep --to
Scores: --tokenize --json
Search: --beam-size --length-penalty --normalization --max-length
Speed and memory: --backend --precision --shortlist --batch-tokens

--run alone scores the whole dev part with the best model and beam 4. Evaluations in training take
at most evaluation.sentences and evaluation.beam_size. Hypothesis files are scored as they are.
The lines of each of several corpora are also scored by themselves. Each system is compared with the
first one, checkpoints before files. The same command prints the same numbers.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal

from tyro.conf import OmitArgPrefixes

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import command_line
from hvd_nmt.config.schema import AUTO, Tokenizer
from hvd_nmt.data import bleu
from hvd_nmt.translation import scoring
from hvd_nmt.translation.scoring import Text
from hvd_nmt.translation.settings import SearchSettings


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Which systems, on which text."""

    run: Path | None = None
    """run directory; it has checkpoints, config.yaml and spm.model"""
    checkpoint: tuple[str, ...] = ()
    """best (by evaluation.best_by), latest, or prefixes (default: best)"""
    source: Path | None = None
    """text to translate, a sentence per line (default: the run's data)"""
    reference: tuple[Path, ...] = ()
    """right translations, one file or more (default: the run's data)"""
    part: Literal["dev", "test"] = "dev"
    """part of the run's data, unless files are given"""
    test_set: str = ""
    """one of sacreBLEU, as wmt20; its languages are the run's, or wmt20:en-de"""
    hypotheses: tuple[Path, ...] = ()
    """translations by others, or made earlier; they are scored like those of the checkpoints"""
    keep: Path | None = None
    """folder that keeps the checkpoints' translations; each is NAME.txt. By default none is kept"""
    json: bool = False
    """print JSON with all digits instead of the table"""
    tokenize: Tokenizer = "auto"
    """how sacreBLEU finds words for BLEU; auto: as in training, else by the references' script"""
    settings: OmitArgPrefixes[SearchSettings] = dataclasses.field(default_factory=SearchSettings)

    def __post_init__(self) -> None:
        if self.run is None and not self.hypotheses:
            raise ConfigError("Nothing to score: give --run, --hypotheses, or both.")
        usual, chosen = SearchSettings().output_options(), self.settings.output_options()
        given = [name for name, value in chosen.items() if usual.get(name) != value]
        given += [name for name in ("checkpoint", "source", "keep", "test_set") if vars(self)[name]]
        if self.run is None and given:
            option = given[0].replace("_", "-")
            raise ConfigError(f"--{option} needs --run, the directory of a run.")
        if self.part != "dev" and (self.source or self.test_set or not self.run):
            raise ConfigError(f"--part {self.part} is of a run: remove --source or --test-set.")
        if self.test_set and (self.source or self.reference):
            raise ConfigError("--test-set has its own text: remove --source and --reference.")
        if self.run is None and not self.reference:
            raise ConfigError("Without --run, hypotheses need --reference, the right translation.")
        if self.source is not None and not self.reference:
            raise ConfigError("--source needs --reference, its right translation.")
        for text in (*self.hypotheses, *self.reference, self.source):
            if self.keep and text and text.resolve().parent == self.keep.resolve():
                raise ConfigError(f"--keep might write over {text}: give another folder.")


@command_line.command("hvd_nmt.evaluate", EvaluateOptions, __doc__)
def main(options: EvaluateOptions) -> None:
    """Translates, scores, and prints the table or JSON."""
    source, references, hypotheses, named = _read(options)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    are_own = not options.reference and not named
    trained = scoring.tokenizers(options.run, are_own) if options.run else {}
    tokenizer: str = options.tokenize
    if is_auto := tokenizer == AUTO:
        tokenizer = scoring.tokenizer(trained, references, are_own)
    bleu.metric(tokenizer)  # before anything is translated
    facts: dict[str, Any] = {"references": [text.name for text in references]}
    systems = hypotheses
    if options.run is not None and source is not None:
        RunDirectory(options.run).import_tensorflow()
        settings = options.settings.exact()
        checkpoints = options.checkpoint or ("best",)
        translations = scoring.translated(options.run, checkpoints, source, settings, options.keep)
        systems = [*translations.values(), *hypotheses]
        facts |= {"source": source.name, "run": str(options.run)}
        facts |= {"checkpoints": [*map(str, translations)], **settings.output_options()}
    corpora = scoring.by_corpus(options.run, options.part) if options.run and are_own else {}
    comparison = scoring.compare(systems, references, tokenizer, named)
    if options.run is not None and source is not None:
        text = options.test_set or (options.part if are_own else Path(source.name).name)
        scoring.record(options.run, translations, text, comparison, settings.decoding.beam_size)
    by_corpus = dict.fromkeys(corpora, comparison)
    if len(corpora) > 1:
        for name, lines in corpora.items():
            by = trained.get(name.rpartition(" ")[0], tokenizer) if is_auto else tokenizer
            ours, right = (
                [Text(text.name, text.lines[lines.start : lines.stop]) for text in of]
                for of in (systems, references)
            )
            by_corpus[name] = scoring.compare(ours, right, by)
    if options.json:
        facts["hypotheses"] = [text.name for text in hypotheses]
        if len(by_corpus) > 1:
            facts["corpora"] = {name: scoring.as_json(part) for name, part in by_corpus.items()}
        print(json.dumps(facts | scoring.as_json(comparison), indent=2, ensure_ascii=False))
    else:
        for name, part in by_corpus.items():
            table = [*scoring.rows(part), ""] if len(by_corpus) > 1 else []
            print("\n".join([f"{name}, {part.sentences:,} sentences", *table]))
        print(("all\n" if len(by_corpus) > 1 else "") + str(comparison))
        if options.run is not None and source is not None:
            training = RunDirectory(options.run).read_config().evaluation
            before = trained.get("", tokenizer)
            other = f", tokenizer {before}" if before != tokenizer else ""
            chosen, usual = settings.output_options(), SearchSettings().output_options()
            how = f"with beam {chosen.pop('beam_size')}, {chosen.pop('precision')}"
            for name, value in chosen.items():
                if value != usual.get(name):
                    how += f", --{name.replace('_', '-')} {value}".removesuffix(" True")
            print(
                f"\nTranslated {source.name} {how}.\n"
                "Evaluations in training: "
                f"{f'at most {training.sentences:,}' if training.sentences else 'all'} "
                f"dev sentences, beam {training.beam_size}{other}."
            )


def _read(options: EvaluateOptions) -> tuple[Text | None, list[Text], list[Text], dict[str, str]]:
    """Source, if there is a run to translate it, references and hypotheses: of equal length.

    And what a test set adds to signatures.
    """
    references = [scoring.read(path) for path in options.reference]
    source, named = None, dict[str, str]()
    if options.run is not None and options.test_set:
        to = options.settings.to
        source, references, named = scoring.test_set(options.test_set, options.run, to)
    elif options.source is not None:
        source = scoring.read(options.source)
    elif options.run is not None:
        source, target = scoring.prepared(options.run, options.part)
        references = references or [target]
    hypotheses = [scoring.read(path) for path in options.hypotheses]
    scoring.require_equal_lengths([*([source] if source else []), *references, *hypotheses])
    return source, references, hypotheses, named


if __name__ == "__main__":
    sys.exit(main())
