"""Translate raw text with a trained run: N lines in, N lines out, in the same order.

    python -m hvd_nmt.translate --run runs/demo < text.en > text.de
    python -m hvd_nmt.translate --run runs/demo --input text.en.gz --output text.de

A line ends at byte 0x0A only, and an output line holds no other line separator either. Wrong UTF-8
is read as U+FFFD; a blank line stays an empty line. A line with more tokens than the model reads is
cut, and stderr says which. Exit codes: 0 done, 2 wrong command line, 3 wrong text or vocabulary,
4 wrong run directory or checkpoint, 130 interrupted.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tqdm import tqdm

from hvd_nmt import command_line, quiet
from hvd_nmt.data.text import read_lines
from hvd_nmt.errors import ConfigError, DataError, reported

if TYPE_CHECKING:
    from hvd_nmt.model.tokenizer import Tokenizer
    from hvd_nmt.model.translator import Translator

# Lines are sorted by length within a chunk: enough for full batches, little enough to keep.
CHUNK_LINES = 10_000
CHUNK_CHARACTERS = 1 << 24
# More than any model reads. SentencePiece needs time quadratic in a run of unknown characters:
# 0.2 s for 100,000 of them, 70 s for a million.
LINE_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class Options:
    """What to translate, and with which model."""

    run: Path
    """run directory with checkpoints, config.yaml and spm.model"""
    checkpoint: str = "best"
    """best: lowest validation loss; latest: newest; or the prefix of a checkpoint's files"""
    beam_size: int = 4
    """hypotheses kept per sentence; 1 is greedy and fastest"""
    length_penalty: float = 0.6
    """alpha of ((5+length)/6)^alpha; larger gives longer translations"""
    batch_tokens: int = 4096
    """source tokens, padding included, translated at once; less needs less memory"""
    input: Path | None = None
    """text, one sentence per line, plain or .gz; by default stdin"""
    output: Path | None = None
    """translations, plain or .gz; by default stdout"""

    def __post_init__(self) -> None:
        if self.beam_size < 1 or self.batch_tokens < 1:
            raise ConfigError("--beam-size and --batch-tokens must be at least 1.")
        if not 0 <= self.length_penalty < float("inf"):
            raise ConfigError(f"--length-penalty is {self.length_penalty}: give 0 or more.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    with reported("hvd_nmt.translate") as outcome:
        options = command_line.options(
            Options, prog="python -m hvd_nmt.translate", description=str(__doc__), argv=argv
        )
        translate(options)
    return outcome.exit_code


def translate(options: Options) -> None:
    """Translates the input to the output.

    Raises:
        UserError: the run, the input or the output cannot be used.
    """
    _check_files(options)
    translator, tokenizer = _load(options)
    lines = read_lines(options.input or sys.stdin.buffer, lenient=True)
    with (
        _opened(options.output) as stream,
        tqdm(unit=" lines", disable=not sys.stderr.isatty()) as progress,
    ):
        first = 1
        for chunk in chunks(lines):
            texts = _translated(chunk, first, translator, tokenizer, options, progress)
            stream.write("".join(text + "\n" for text in texts).encode())
            stream.flush()
            first += len(chunk)


def chunks(
    lines: Iterable[str], most_lines: int = CHUNK_LINES, most_characters: int = CHUNK_CHARACTERS
) -> Iterator[list[str]]:
    """Cuts a stream of lines into lists that fit into memory: a few long lines or many short."""
    chunk: list[str] = []
    room = most_characters
    for line in lines:
        chunk.append(line)
        room -= len(line)
        if len(chunk) == most_lines or room <= 0:
            yield chunk
            chunk, room = [], most_characters
    if chunk:
        yield chunk


def _translated(
    lines: list[str],
    first: int,
    translator: Translator,
    tokenizer: Tokenizer,
    options: Options,
    progress: tqdm,
) -> list[str]:
    """The translations of a chunk of lines, the first of which has number `first`."""
    import tensorflow as tf

    def note(index: int, text: str) -> None:
        tqdm.write(f"{options.input or 'stdin'}, line {first + index}: {text}", file=sys.stderr)

    limit = translator.max_length
    sources = tokenizer.encode([line[:LINE_CHARACTERS] for line in lines])
    for index, (line, ids) in enumerate(zip(lines, sources, strict=True)):
        if len(ids) > limit or len(line) > LINE_CHARACTERS:
            note(index, f"{len(line):,} characters, cut to the model's {limit:,} tokens.")
    best = {}
    try:
        for index, translation in translator.translate(sources, options.batch_tokens):
            best[index] = translation.ids
            if translation.score == -float("inf"):
                note(index, "the model gave no translation (its weights may hold NaN).")
            progress.update()
    except tf.errors.ResourceExhaustedError:
        raise ConfigError(
            f"--batch-tokens {options.batch_tokens} with --beam-size {options.beam_size} needs more"
            " memory than there is: lower one of them."
        ) from None
    return tokenizer.decode(best[index] for index in range(len(lines)))


def _load(options: Options) -> tuple[Translator, Tokenizer]:
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    quiet.import_tensorflow()
    from hvd_nmt.model.tokenizer import Tokenizer
    from hvd_nmt.model.translator import Translator
    from hvd_nmt.training.weights import load_model

    model, _ = load_model(options.run, options.checkpoint)
    tokenizer = Tokenizer(options.run / "spm.model")
    translator = Translator(
        model, beam_size=options.beam_size, length_penalty=options.length_penalty
    )
    return translator, tokenizer


def _check_files(options: Options) -> None:
    """What can be told before the model is loaded and an older output is overwritten."""
    if options.input is None:
        return
    if not options.input.exists():
        raise DataError(f"There is no file {options.input}.")
    if options.output and options.output.exists() and options.output.samefile(options.input):
        raise ConfigError(f"{options.output} is the input: give the output another name.")


@contextmanager
def _opened(path: Path | None) -> Iterator[IO[bytes]]:
    try:
        if path is None:
            yield sys.stdout.buffer
        else:
            opener: Any = gzip.open if path.suffix == ".gz" else open
            with opener(path, "wb") as stream:
                yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        name = path or "stdout"
        raise ConfigError(f"{name} cannot be written: {error.strerror or error}.") from None


if __name__ == "__main__":
    sys.exit(main())
