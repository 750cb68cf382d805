"""A lexical shortlist: for each source piece the target pieces that it may become.

CTranslate2 reads it as `vmap.txt`: a source piece, a tab, its candidates between spaces. The line
of no piece names the candidates of every sentence. Source of the lexical translation table: model 1
of Brown et al. (1993), "The Mathematics of Statistical Machine Translation"; eos is its NULL word.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.progress import announce
from hvd_nmt.data import corpus
from hvd_nmt.data.corpus import ParallelCorpus

FILE = "vmap.txt"
BEST = 100
"""most candidates of a source piece"""
FREQUENT = 100
"""target pieces that are candidates of every sentence"""
_MOST_PAIRS = 100_000  # evenly taken from a larger corpus
_BLOCK_PAIRS = 20_000  # whose links are sorted at once
_ITERATIONS = 4


def write(folder: Path, run: Path, source_pieces: Sequence[str], pieces: Sequence[str]) -> None:
    """Write `vmap.txt`, learned from the run's training pairs; DataError: they are not here."""
    pairs = corpus.load(RunDirectory(run).data()[0]).train
    announce(f"learning the shortlist from {min(len(pairs), _MOST_PAIRS):,} training pairs")
    candidates, known = shortlist(pairs, len(pieces)), frozenset(pieces)
    lines = ["\t" + " ".join(pieces[number] for number in frequent(pairs, len(pieces)))]
    for number, piece in enumerate(source_pieces):
        listed = [pieces[target] for target in candidates.get(number, ())]
        listed += [piece] if piece in known else []  # a name or a number is copied
        if listed:
            lines.append(f"{piece}\t{' '.join(dict.fromkeys(listed))}")
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def frequent(pairs: ParallelCorpus, n_targets: int) -> list[int]:
    """The most frequent target ids, for every sentence."""
    counts = np.bincount(pairs.target.ids, minlength=n_targets)
    order = np.argsort(-counts, kind="stable")[:FREQUENT]
    return [int(target) for target in order if counts[target]]


def shortlist(pairs: ParallelCorpus, n_targets: int, best: int = BEST) -> dict[int, list[int]]:
    """Source id -> the target ids of highest lexical translation probability, best first."""
    keys, probabilities = lexical_table(pairs, n_targets)
    order = np.lexsort((-probabilities, keys // n_targets))
    sources, targets = np.divmod(keys[order], n_targets)
    numbers, starts = np.unique(sources, return_index=True)
    ends = [*starts[1:], len(sources)]
    return {
        int(number): targets[start : min(end, start + best)].tolist()
        for number, start, end in zip(numbers, starts, ends, strict=True)
    }


def lexical_table(pairs: ParallelCorpus, n_targets: int) -> tuple[np.ndarray, np.ndarray]:
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


def _blocks(
    pairs: ParallelCorpus, n_targets: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Keys of some pairs, ascending; the number of each link's key; the links of each target.

    A link joins a target token, without eos, to a source token of its pair.
    """
    chosen = np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), _MOST_PAIRS), dtype=int))
    for start in range(0, len(chosen), _BLOCK_PAIRS):
        linked, lengths = [], []
        for index in chosen[start : start + _BLOCK_PAIRS]:
            source, target = pairs.source[index].astype(np.int64), pairs.target[index][:-1]
            linked.append((source * n_targets + target[:, None]).ravel())
            lengths.append(np.full(len(target), len(source)))
        keys, links = np.unique(np.concatenate(linked), return_inverse=True)
        yield keys, links.astype(np.int32), np.concatenate(lengths)
