"""Pairs of a data directory for a reader: some that are kept, or some that were removed."""

import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hvd_nmt.data import corpus
from hvd_nmt.preparation import subwords


def kept(directory: Path, count: int) -> Iterator[str]:
    """Training pairs of each corpus, evenly spread, as the model reads them: decoded from ids."""
    data = corpus.load(directory)
    models = [subwords.load(p.read_bytes()) for p in (data.source_spm_path, data.spm_path)]
    ranges = data.manifest.by_corpus("train") or {"": range(len(data.train))}
    for name, pairs in ranges.items():
        shown = min(count, len(pairs))
        for place in range(shown):
            index = pairs[(2 * place + 1) * len(pairs) // (2 * shown)]
            yield f"{name} pair {index - pairs.start + 1:,}".lstrip()
            for model, side in zip(models, (data.train.source, data.train.target), strict=True):
                yield f"  {model.decode(side[index].tolist())}"


def removed(directory: Path, count: int) -> Iterator[str]:
    """Pairs that each rule has removed: the first ones, with their line numbers."""
    for path in sorted(directory.glob("removed.*tsv.gz")):
        shown: Counter[str] = Counter()
        name = path.name.removeprefix("removed.").removesuffix("tsv.gz").rstrip(".")
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as rows:
            for row in rows:
                rule, number, source, target = row.rstrip("\n").split("\t")
                shown[rule] += 1
                if shown[rule] <= count:
                    yield f"{name} line {int(number):,}: {rule}".lstrip()
                    yield f"  {source}"
                    yield f"  {target}"
