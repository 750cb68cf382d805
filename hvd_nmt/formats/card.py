"""The model card of an export: what the model is, what it was made of, what it cannot do.

Source: Mitchell et al. 2019, "Model Cards for Model Reporting"; the head is Hugging Face's.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from string import Template

from hvd_nmt.checkpoints import contents
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import DataError
from hvd_nmt.common.version import __version__
from hvd_nmt.data import bleu, corpus, language
from hvd_nmt.formats import shortlist
from hvd_nmt.records import metrics
from hvd_nmt.records.record import Evaluation
from hvd_nmt.reporting import answer

FILE, README, PROGRAM = "README.md", "README.txt", "translate.py"
"""files of an export: the card, how the model is used, and a program that does so"""


def write(folder: Path, run: Path, prefix: Path, licence: str = "", readme: str = "") -> None:
    """Put the card of a checkpoint of a run into the folder of its export, and how it is used."""
    has_shortlist = (folder / shortlist.FILE).exists()
    (folder / FILE).write_text(card(run, prefix, licence, has_shortlist), encoding="utf-8")
    if readme:
        (folder / README).write_text(readme, encoding="utf-8")


def card(run: Path, prefix: Path, licence: str = "", has_shortlist: bool = False) -> str:
    """The card of a checkpoint, Markdown; what the run does not tell here is left open."""
    manifest, checkpoint = data(run), Checkpoint.at(prefix)
    directions = manifest.directions if manifest else []
    sides = [list(dict.fromkeys(side)) for side in zip(*directions, strict=True)]
    codes = dict.fromkeys(language.base(code) for side in sides for code in side)
    head = ["language:", *(f"- {json.dumps(code)}" for code in codes)] if codes else []
    names = " to ".join(", ".join(map(language.english_name, side)) for side in sides)
    facts = [*_facts(run, checkpoint, licence or "not named")]
    if has_shortlist:
        facts.append(("shortlist", f"{shortlist.FILE}: it searches pieces that go with the source"))
    head += [f"license: {json.dumps(licence or 'unknown')}", "tags:", "- translation"]
    text = answer.blocks(
        "\n".join(["---", *head, "---"]),
        f"# {answer.plain(names or 'A language pair')}: a translation model",
        answer.table(answer.Table("", ("", ""), facts)),
        "## Training data", _data(manifest, checkpoint),
        "## Scores", _scores(run, checkpoint),
        "## Limits", answer.listed(tuple(_limits(run, sides))),
    )  # fmt: skip
    return text + "\n"


def data(run: Path) -> corpus.DataManifest | None:
    """What the run was trained on, if it is on this machine."""
    try:
        return RunDirectory(run).data()[1]
    except DataError:
        return None


def sample(run: Path) -> str:
    """The first sentence of the run's dev part, with the tags of its corpus; "..." without it."""
    try:
        directory, manifest = RunDirectory(run).data()
        line = next(filter(str.strip, corpus.load(directory).text("dev")[0]), "...")
    except DataError:
        return "..."
    return " ".join([*(manifest.corpora[0].tags if manifest.corpora else ()), line])


def use(out: Path, run: Path) -> str:
    """How an export translates a file and, in Python, a list."""
    return f"""\
Translate a file:

    python {shlex.quote(f"{out.name}/{PROGRAM}")} < in.txt > out.txt

or some lines, in Python:

import sys
sys.path.insert(0, {out.name!r})
from translate import translate
print(translate([{sample(run)!r}]))
"""


def program(name: str, **options: object) -> str:
    """The program of an export, of `programs/`, with these values; all of them begin alike."""
    folder = resources.files(__package__).joinpath("programs")
    parts = (folder.joinpath(part).read_text(encoding="utf-8") for part in ("head.txt", name))
    return Template("".join(parts)).substitute(options)


def _facts(run: Path, checkpoint: Checkpoint, licence: str) -> Iterator[tuple[str, str]]:
    model, manifest = RunDirectory(run).read_config().model, checkpoint.manifest
    depth = f"{model.encoder_layers}+{model.decoder_layers} layers"
    size = f"{contents.read(checkpoint.prefix).parameters:,} parameters"
    yield "model", f"Transformer, {depth}, {model.width} wide, {model.heads} heads, {size}"
    rows = f"{manifest.vocabulary_size:,}"
    if manifest.source_vocabulary_size:
        rows += f" (target) and {manifest.source_vocabulary_size:,} (source)"
    yield "vocabulary", f"SentencePiece, {rows} embedding rows"
    loss = "" if manifest.val_loss is None else f", validation loss {manifest.val_loss:.4f}"
    yield "checkpoint", f"{checkpoint.prefix.name}, step {checkpoint.step:,}{loss}"
    yield "SHA-256 of its weights", checkpoint.record()["sha256"]
    yield "licence", licence
    command = shlex.join(["python", "-m", "hvd_nmt.export", *sys.argv[1:]])
    yield "exported by", f"hvd_nmt {__version__}: {command}"


def _data(manifest: corpus.DataManifest | None, checkpoint: Checkpoint) -> str:
    if manifest is None:
        return f"Not on the machine of the export; their hash is {checkpoint.manifest.data_hash}."
    names = [corpus.name for corpus in manifest.corpora] or [manifest.request.get("corpus", "")]
    named = ", ".join(name for name in names if name not in ("", "files"))
    rows = []
    for name, part in manifest.parts.items():
        n_bytes = f"{part.source.text_bytes:,} + {part.target.text_bytes:,}"
        digests = dict.fromkeys([part.source.input.sha256, part.target.input.sha256])
        rows.append((name, part.pairs, n_bytes, ", ".join(digests)))  # one of a file with both
    head = ("part", "pairs", "bytes of source and target", "SHA-256 of the files")
    table = answer.table(answer.Table("", head, rows))
    return answer.blocks(answer.sentence(f"Of {named}.") if named else "", table)


def _scores(run: Path, checkpoint: Checkpoint) -> str:
    """The scores of the dev part in training, and those that `evaluate` has measured."""
    rows: list[tuple[object, ...]] = []
    directory = RunDirectory(run)
    records = metrics.records(directory.read_metrics([]))
    for of in metrics.of_kind(Evaluation, records):
        if of.step == checkpoint.step and of.bleu is not None:
            evaluation = directory.read_config().evaluation
            tokenizer = metrics.tokenizers({}, records).get("", bleu.USUAL)
            signature = bleu.metric(tokenizer, references=[[""]]).get_signature().format()
            how = f"{evaluation.sentences or 'all'}, beam {evaluation.beam_size}"
            cells = ["" if value is None else f"{value:.2f}" for value in (of.bleu, of.chrf)]
            rows = [("dev, in training", how, *cells, signature)]
    for line in directory.scores_of(checkpoint.record()["sha256"]):
        how = f"{line['sentences']}, beam {line['beam_size']}"
        cells = [f"{line['scores'][name]:.2f}" for name in ("BLEU", "chrF2")]
        rows.append((line["text"], how, *cells, line["signatures"]["BLEU"]))
    if not rows:
        return "None: run `python -m hvd_nmt.evaluate`, and export again."
    head = ("text", "sentences", "BLEU", "chrF2", "sacreBLEU's signature of BLEU")
    return answer.table(answer.Table("", head, rows))


def trained_length(run: Path) -> int:
    """Most tokens of a training sentence, where the data are here; else what the model reads."""
    config = RunDirectory(run).read_config()
    try:
        train = corpus.load(RunDirectory(run).data()[0]).train
    except DataError:
        return config.model.max_length
    longest = max(side.lengths.max(initial=1) for side in (train.source, train.target))
    return min(int(longest), config.model.max_length)


def _limits(run: Path, sides: list[list[str]]) -> Iterator[str]:
    length = trained_length(run)
    yield (
        f"It was trained on lines of up to {length} subword tokens, mostly single sentences: give "
        "it one sentence at a time."
    )
    yield "It knows the subjects and the style of its training data, and may fail on others."
    if sides and (known := language.script_names(sides[0])):
        yield f"It reads letters of {known}; others it knows by chance, if at all."
    yield "Names, numbers and negations can come out wrong: have a person read what matters."
