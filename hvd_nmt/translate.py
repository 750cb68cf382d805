"""Translate raw text with a trained run: N lines in, N lines out, in the same order.

    python -m hvd_nmt.translate --run runs/demo < text.en > text.de
    python -m hvd_nmt.translate --run runs/demo --input text.en.gz --output text.de
    python -m hvd_nmt.translate --run runs/demo --checkpoint best latest < text.en
    python -m hvd_nmt.translate --run runs/demo --score --input text.en --target text.de
    horovodrun -np 4 -H a:2,b:2 python -m hvd_nmt.translate --run runs/demo --input F --output G

A line ends at byte 0x0A only, and an output line holds no other line separator either. Wrong UTF-8
is read as U+FFFD; a blank line stays an empty line. A line with more tokens than the model reads is
split or cut, and stderr says which. What is typed, or comes slowly through a pipe, is answered line
by line.

--output FILE is complete or not there: until the end the lines are in FILE.part, and beside it
FILE.part.json says how far the job is. After kill -9, or whatever else, the same command goes on
after the last thousand lines that were finished, with none lost or doubled. A pipe cannot be read
again, so such a job starts afresh.

Under horovodrun the ranks share one file, by chunks. Rank 0 reads the input and writes the output,
which need to be on its host only; every host needs the run directory under the same path. The
number of ranks does not change the output.

With --n-best, --scores, --token-scores or --alignments a line of output has columns, separated by
tabs, in this order: number of the input line from 1 (--n-best above 1, which gives up to that many
lines for each); score (--n-best above 1, --scores), the log-probability divided by the length
penalty; the text; PIECE=LOGP of each token (--token-scores); i-j for each token j of the text, made
from token i of the source, both from 0 (--alignments, as in Pharaoh). Tokens are the pieces of the
run's spm.model.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import OmitArgPrefixes

import hvd_nmt
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.progress import progress, remark
from hvd_nmt.config import command_line
from hvd_nmt.data.corpus import fingerprint
from hvd_nmt.data.text import read_lines
from hvd_nmt.translation import output, output_format, ranks, reader
from hvd_nmt.translation.output_format import Columns
from hvd_nmt.translation.settings import Settings

if TYPE_CHECKING:
    from hvd_nmt.translation.engine import Advance, Engine

Chunk = tuple[int, list[str], list[str] | None]
"""number of the first line, lines of the input, and what --prefix or --target has beside them"""
Found = tuple[list[list[str]], list[tuple[int, str]]]
"""lines of output for each line of input, and remarks on lines by index"""


@dataclasses.dataclass(frozen=True)
class Options:
    """What to translate, and with which model."""

    run: Path
    """run directory with checkpoints, config.yaml and spm.model"""
    checkpoint: tuple[str, ...] = ("best",)
    """best: lowest validation loss; latest: newest; or the prefix of a checkpoint's files; several
    translate together, as an ensemble"""
    input: Path | None = None
    """text, one sentence per line, plain or .gz; by default stdin"""
    output: Path | None = None
    """translations, plain or .gz; by default stdout"""
    prefix: Path | None = None
    """file with a line for each line of input, plain or .gz: how its translation must begin; an
    empty line leaves it free"""
    scores: bool = False
    """put the score before each translation"""
    token_scores: bool = False
    """put the log-probability of each token behind it"""
    alignments: bool = False
    """put behind it which token of the source made which of the translation"""
    score: bool = False
    """translate nothing: print the log-probability of each line of --target as the translation of
    its line of input, natural logarithm, summed over tokens"""
    target: Path | None = None
    """translations to score, plain or .gz"""
    settings: OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ConfigError("--checkpoint names none: give best, latest or a prefix.")
        if self.score != (self.target is not None):
            raise ConfigError("--score and --target belong together: give both or neither.")
        if self.settings.backend != "tensorflow":
            if self.alignments:
                raise ConfigError(
                    "--alignments needs --backend tensorflow, which keeps the attention."
                )
            if self.prefix is not None:
                raise ConfigError("--prefix needs --backend tensorflow, which can force tokens.")
        if self.score:
            excluded = {
                "--prefix": self.prefix is not None,
                "--scores": self.scores,
                "--alignments": self.alignments,
                "--n-best": self.settings.decoding.n_best > 1,
                "--sample": self.settings.decoding.sample,
                "--backend ctranslate2": self.settings.backend == "ctranslate2",
            }
            for name, given in excluded.items():
                if given:
                    raise ConfigError(f"--score does not go with {name}: leave one of them out.")

    @property
    def beside(self) -> Path | None:
        """The file that goes with the input line by line."""
        return self.target if self.score else self.prefix

    @property
    def columns(self) -> Columns:
        """What is told of each translation."""
        several = self.settings.decoding.n_best > 1
        return Columns(several, self.scores, self.token_scores, self.alignments)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.translate", Options, translate, str(__doc__), argv)


def translate(options: Options) -> None:
    """Translates, or scores, the input to the output.

    Raises:
        UserError: the run, the input or the output cannot be used.
    """
    if command_line.is_first_rank():
        _check_files(options)
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    tensorflow_import.import_tensorflow()
    from hvd_nmt.translation import engine

    with ranks.joined(options.settings.threads) as crew, ExitStack() as stack:
        with crew.raise_on_all_ranks():
            # Once: a run that still trains may have another best one a moment later.
            located = engine.located(options.run, options.checkpoint)
            checkpoints = engine.identity(located)
        crew.require_equal({"checkpoint": checkpoints, "code of hvd_nmt": hvd_nmt.code_hash()})
        written: output.Output | None = None
        chunks: Iterator[Chunk] = iter(())
        with crew.raise_on_all_ranks():
            if crew.is_first:
                opened = output.opened(
                    options.output, _job(options, checkpoints),
                    resumable=_is_file(options.input)
                    and (options.beside is None or _is_file(options.beside)),
                )  # fmt: skip
                written = stack.enter_context(opened)
                chunks = _chunks(options, written.lines_done, crew.size)
        with crew.raise_on_all_ranks():
            threads = crew.threads(options.settings.threads)
            settings = dataclasses.replace(options.settings, threads=threads)
            loaded = engine.load(options.run, located, settings)
        try:
            _translate_all(options, crew, loaded, chunks, written)
        except KeyboardInterrupt:
            if written is not None and written.lines_kept:
                kept = f"{written.lines_kept:,} lines are done and kept: the same command goes on."
                print(kept, file=sys.stderr)
            raise
        with crew.raise_on_all_ranks():
            stack.close()


def _translate_all(
    options: Options,
    crew: ranks.Ranks,
    engine: Engine,
    chunks: Iterator[Chunk],
    written: output.Output | None,
) -> None:
    """Chunk by chunk: rank 0 reads, all translate their share, rank 0 writes."""
    done = written.lines_done if written else 0
    total = None
    if crew.is_first and options.input is not None and _is_file(options.input):
        total = reader.count_lines(options.input)
    with progress(total, "lines", done=done, show=crew.is_first) as bar:
        while True:
            with crew.raise_on_all_ranks():
                here = next(chunks, None)
            chunk = crew.of_first(here)
            if chunk is None:
                return
            mine = crew.share(chunk[1])
            with crew.raise_on_all_ranks():
                rows, remarks = _worked(options, engine, chunk, mine, bar.update)
            everything = crew.gathered((mine, rows, remarks))
            with crew.raise_on_all_ranks():
                if written is not None:
                    _write(options, chunk, everything, written)
            bar.update(len(chunk[1]) - len(mine))


def _worked(
    options: Options, engine: Engine, chunk: Chunk, mine: list[int], advance: Advance
) -> Found:
    """This rank's share of a chunk."""
    first, *both = chunk
    lines, beside = (None if side is None else [side[index] for index in mine] for side in both)
    assert lines is not None
    pieces = engine.tokenizer.pieces
    numbers = [first + index for index in mine]
    if options.score:
        assert beside is not None
        scored = engine.score(lines, beside, advance)
        pairs = zip(scored.targets, scored.logps, strict=True)
        tokens = options.token_scores
        rows = [[output_format.scored_row(ids, logps, pieces, tokens)] for ids, logps in pairs]
        remarks = scored.remarks
    else:
        wanted = options.columns
        results = engine.translate(lines, beside, wanted.details, advance, numbers)
        found = zip(results.lines, numbers, strict=True)
        rows = [output_format.rows(line, number, wanted, pieces) for line, number in found]
        remarks = results.remarks
    return rows, [(numbers[place], text) for place, text in remarks]


def _write(
    options: Options, chunk: Chunk, found: list[tuple[list[int], *Found]], written: output.Output
) -> None:
    """The ranks' shares of a chunk, put in order."""
    in_order: dict[int, list[str]] = {}
    for indices, rows, _ in found:
        in_order.update(zip(indices, rows, strict=True))
    for number, text in sorted(tuple(each) for *_, remarks in found for each in remarks):
        remark(f"{options.input or 'stdin'}, line {number}: {text}")
    count = len(chunk[1])
    written.write([row for index in range(count) for row in in_order[index]], count)


def _chunks(options: Options, done: int, ranks_count: int) -> Iterator[Chunk]:
    """The input after the lines that are done."""
    if options.input is None:
        found = reader.from_stdin()
    else:
        lines = islice(read_lines(options.input, lenient=True), done, None)
        found = reader.chunks(lines, reader.CHUNK_LINES * ranks_count)
    others = None
    if options.beside is not None:
        others = islice(read_lines(options.beside, lenient=True), done, None)
    first = done + 1
    for chunk in found:
        beside = None if others is None else list(islice(others, len(chunk)))
        if beside is not None and len(beside) < len(chunk):
            raise DataError(f"{options.beside} has fewer lines than {options.input or 'stdin'}.")
        yield first, chunk, beside
        first += len(chunk)
    if others is not None and next(others, None) is not None:
        raise DataError(f"{options.beside} has more lines than {options.input or 'stdin'}.")


def _job(options: Options, checkpoints: list[str]) -> output.Job:
    """What decides the output: a half-finished one is gone on with only where all is equal."""
    if options.output is None:
        return {}
    files = {"input": options.input, "prefix": options.prefix, "target": options.target}
    job: output.Job = {
        name: fingerprint(path).sha256 if path and _is_file(path) else None
        for name, path in files.items()
    }
    job |= {"checkpoint": checkpoints, "version": hvd_nmt.__version__, "score": options.score}
    return job | dataclasses.asdict(options.columns) | options.settings.decisive()


def _check_files(options: Options) -> None:
    """What can be told before the model is loaded."""
    if command_line.started_by_horovod():
        if options.input is None:
            raise ConfigError("horovodrun does not hand its stdin to the ranks: give --input.")
        if options.output is None:
            raise ConfigError("horovodrun marks what a rank prints with its number: give --output.")
    for path in (options.input, options.beside):
        if path is None:
            continue
        if not path.exists():
            raise DataError(f"There is no file {path}.")
        for written in output.files(options.output) if options.output else ():
            if written.exists() and written.samefile(path):
                raise ConfigError(f"{written} is the input: give the output another name.")
    both = [path for path in (options.input, options.beside) if path and _is_file(path)]
    if len(both) == 2:
        counts = [reader.count_lines(path) for path in both]
        if counts[0] != counts[1]:
            raise DataError(
                f"{options.input} has {counts[0]} lines, but {options.beside} has {counts[1]}: "
                "line i of one must belong to line i of the other."
            )


def _is_file(path: Path | None) -> bool:
    """Whether it can be read twice: not standard input, nor a pipe that has a name."""
    return path is not None and path.is_file()


if __name__ == "__main__":
    sys.exit(main())
