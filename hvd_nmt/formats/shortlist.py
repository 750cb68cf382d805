"""A lexical shortlist: for each source piece the target pieces that it may become.

CTranslate2 reads it as `vmap.txt`: a source piece, a tab, its candidates between spaces. The line
of no piece names the candidates of every sentence. Source of the lexical translation table: model 1
of Brown et al. (1993), "The Mathematics of Statistical Machine Translation"; eos is its NULL word.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.progress import announce
from hvd_nmt.config import EOS
from hvd_nmt.data import corpus
from hvd_nmt.data.corpus import ParallelCorpus

Pairs = Sequence[tuple[np.ndarray, np.ndarray]]
"""ids of a source and of its target, each ending with eos"""
FILE = "vmap.txt"
BEST = 100
"""most candidates of a source piece"""
FREQUENT = 100
"""target pieces that are candidates of every sentence"""
_MOST_LINKS = 100_000_000  # of the pairs evenly taken from a larger corpus
_BLOCK_LINKS = 10_000_000  # sorted at once
_ITERATIONS = 4


def write(
    folder: Path, training: ParallelCorpus, source_pieces: Sequence[str], pieces: Sequence[str]
) -> None:
    """Write `vmap.txt`, learned from training pairs."""
    pairs = _sample(training)
    announce(f"learning the shortlist from {len(pairs):,} training pairs")
    candidates = shortlist(pairs, len(pieces))
    always = [*frequent(pairs, len(pieces)), *candidates.pop(EOS, [])]  # no engine looks eos up
    listed = {"": [pieces[target] for target in always]}
    known = frozenset(pieces)
    for number, piece in enumerate(source_pieces):
        listed[piece] = [pieces[target] for target in candidates.get(number, ())]
        listed[piece] += [piece] if piece in known else []  # a name or a number is copied
    lines = [
        f"{piece}\t{' '.join(dict.fromkeys(filter(_is_one_word, targets)))}\n"
        for piece, targets in listed.items()
        if targets and (_is_one_word(piece) or not piece)
    ]
    (folder / FILE).write_text("".join(lines), encoding="utf-8")


def training_pairs(run: Path) -> ParallelCorpus:
    """Those of the run; DataError: not here, ConfigError: of several, which would compete."""
    data = corpus.load(RunDirectory(run).data()[0])
    if len(data.manifest.directions) > 1:
        raise ConfigError(f"{run} has several directions, and --shortlist is for one: omit it.")
    return data.train


def frequent(pairs: Pairs, n_targets: int) -> list[int]:
    """The most frequent target ids, for every sentence."""
    counts = np.bincount(np.concatenate([target for _, target in pairs]), minlength=n_targets)
    order = np.argsort(-counts, kind="stable")[:FREQUENT]
    return [int(target) for target in order if counts[target]]


def shortlist(pairs: Pairs, n_targets: int, best: int = BEST) -> dict[int, list[int]]:
    """Source id -> the target ids of highest lexical translation probability, best first."""
    keys, probabilities = lexical_table(pairs, n_targets)
    order = np.lexsort((-probabilities, keys // n_targets))
    sources, targets = np.divmod(keys[order], n_targets)
    numbers, starts = np.unique(sources, return_index=True)
    rows = np.split(targets, starts[1:])
    return {int(number): row[:best].tolist() for number, row in zip(numbers, rows, strict=False)}


def lexical_table(pairs: Pairs, n_targets: int) -> tuple[np.ndarray, np.ndarray]:
    """P(target | source) of the ids that share a pair; the key is source x n_targets + target.

    int64 [entries], ascending; float64 [entries].
    """
    blocks = [*_blocks(pairs, n_targets)]
    all_keys = np.concatenate([keys for keys, _, _ in blocks])
    keys, _ = np.unique(all_keys, return_index=True)  # this sorts: faster than to hash
    sources = keys // n_targets
    probabilities = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        expected = np.zeros(len(keys))
        for block_keys, links, lengths in blocks:
            places = np.searchsorted(keys, block_keys)
            weights = probabilities[places][links]
            sums = np.add.reduceat(weights, np.cumsum(lengths) - lengths)
            expected[places] += np.bincount(links, weights / np.repeat(sums, lengths))
        probabilities = expected / np.bincount(sources, expected)[sources]
    return keys, probabilities


def _sample(pairs: ParallelCorpus) -> Pairs:
    """Evenly taken pairs with at most `_MOST_LINKS` links."""
    every = math.ceil(_links(pairs.source.lengths, pairs.target.lengths).sum() / _MOST_LINKS) or 1
    return [(pairs.source[i], pairs.target[i]) for i in range(0, len(pairs), every)]


def _links(source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
    """int64 [pairs]. A link joins a target token, without eos, to a source token of its pair."""
    return source_lengths.astype(np.int64) * (target_lengths - 1)


def _blocks(pairs: Pairs, n_targets: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Keys of some pairs, ascending; the number of each link's key; the links of each target."""
    lengths_2 = np.array([(len(source), len(target)) for source, target in pairs])
    block = np.cumsum(_links(*lengths_2.T)) // _BLOCK_LINKS
    for _, numbered in itertools.groupby(zip(block, pairs, strict=True), lambda each: each[0]):
        linked, lengths = [], []
        for _, (source, target) in numbered:
            linked.append((source.astype(np.int64) * n_targets + target[:-1, None]).ravel())
            lengths.append(np.full(len(target) - 1, len(source)))
        keys, links = np.unique(np.concatenate(linked), return_inverse=True)
        yield keys, links.astype(np.int32), np.concatenate(lengths)


def _is_one_word(piece: str) -> bool:
    """Whether the file's tabs and spaces keep it whole."""
    return piece.split() == [piece]
