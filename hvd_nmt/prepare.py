"""Raw parallel text to a prepared data directory: clean, train SentencePiece, encode.

    python -m hvd_nmt.prepare --dataset embedded --out data/embedded-en-de
    python -m hvd_nmt.prepare --dataset wmt16-en-de --max-length 56 --out data/wmt16-en-de
    python -m hvd_nmt.prepare --corpora corpora.yaml --out data/mixed
    python -m hvd_nmt.prepare --corpus memory.tmx de-en.txt.zip --dev-size 1000 --out data/memory
    python -m hvd_nmt.prepare --train-source train.en.gz --train-target train.de.gz \\
        --dev-source val.en.gz --dev-target val.de.gz --source-language en --target-language de \\
        --vocabulary-size 8000 --out data/multi30k

Text: --out --dataset --corpora --corpus --train-source --train-target --dev-source --dev-target
    --dev-size --test-source --test-target --source-language --target-language --overwrite
Cleaning: --clean --max-length --too-long --not-utf8 --remove-duplicates --remove-leaks
Vocabulary: --vocabulary-size --separate-vocabularies --vocabulary --character-coverage --tags
Noise: --bpe-dropout --noise.typos --noise.upper-case --copies

Pairs with an empty side or longer than --max-length are skipped and counted. OUT/removed.tsv.gz
holds the pairs that cleaning removed. Dev and test pairs are all kept, so that BLEU stays
comparable. The same command again sees that the work is done. OUT appears whole or not at all.
"""

import sys
from typing import Any

from hvd_nmt.common.errors import DataError, outliving_readers
from hvd_nmt.common.files import exclusive, replacing
from hvd_nmt.config import command_line
from hvd_nmt.data import corpus
from hvd_nmt.preparation import quality, show, stages
from hvd_nmt.preparation.options import PreparationOptions, find_corpora
from hvd_nmt.preparation.request import is_met, request


@command_line.command("hvd_nmt.prepare", PreparationOptions, __doc__)
@outliving_readers("hvd_nmt.prepare")  # hours of work
def main(options: PreparationOptions) -> None:
    """Makes the data directory, unless it is there; DataError: the inputs cannot be used."""
    with exclusive(options.out):
        corpora = find_corpora(options)
        wanted = request(options, corpora)
        if _is_done(options, wanted):
            print(f"{options.out} is there with these settings: nothing to prepare.")
        else:
            with replacing(options.out) as result:
                stages.make_data_directory(options, corpora, wanted, result)
            print(quality.summary(options.out))
    if options.show:
        lines = show.removed if options.removed else show.kept
        print("\n".join(lines(options.out, options.show)))


def _is_done(options: PreparationOptions, wanted: dict[str, Any]) -> bool:
    """Whether the directory holds the very result; DataError: something else is in the way."""
    out = options.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / corpus.MANIFEST).is_file():
        raise DataError(f"{out} exists and is not a prepared data directory: choose another --out.")
    try:
        if is_met(options, wanted, corpus.load(out).manifest.request):
            return True
        state = f"{out} was prepared with other settings or from other text."
    except DataError as error:
        state = str(error)
    if options.overwrite:
        for folder in (path for path in out.iterdir() if path.is_dir()):  # such as a run
            raise DataError(f"{folder} would be removed with {out}: move it away first.")
        return False
    raise DataError(f"{state} Choose another --out, or add --overwrite to replace it.")


if __name__ == "__main__":
    sys.exit(main())
