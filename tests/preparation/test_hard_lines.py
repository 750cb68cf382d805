"""25,000 hard lines through reading, cleaning and encoding: pairs stay pairs, none is lost."""

import gzip
import random
from functools import cache
from itertools import pairwise
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_nmt.data import text
from hvd_nmt.preparation import encoding, parts, subwords
from hvd_nmt.preparation.cleaning import CleaningRules
from hvd_nmt.preparation.corpus_files import CorpusFiles, Input
from hvd_nmt.preparation.encoding import LengthLimit

LINES = 250  # for each of 100 examples
BOM = b"\xef\xbb\xbf"
BITS = [
    b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"\x00", b"\t", b"\x7f", b" ",
    "\x85".encode(), "\u2028".encode(), "\u2029".encode(), "\u00a0".encode(), "\u3000".encode(),
    BOM, "\ufffd".encode(), "\u200b".encode(), "\u2581".encode(), "ﬁ½😀".encode(), b"</s>",
    b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"word", b"Wort",
    "größer".encode(), b"", b"",
]  # fmt: skip
UNSEEN = " \u00a0\u3000\u200b\u2581"
CONTROLS = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF}


@cache
def model():
    return subwords.load(subwords.train(["word wort größer word Wort in", "fi 1/2 grob"] * 9, 48))


def hard_lines(chance):
    return [b"".join(chance.choices(BITS, k=chance.randint(0, 6))) for _ in range(LINES)]


def file_of(directory, name, lines, chance):
    """The lines as a file in one of the forms a file may have."""
    raw = BOM * chance.randint(0, 1) + b"\n".join(lines) + b"\n"
    if chance.random() < 0.3 and lines[-1]:
        raw = raw[:-1]  # no final newline
    path = directory / (name + chance.choice(["", ".gz"]))
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)
    return path


def meant(raw):
    """What a line of bytes means, read off the policy; None if it is not UTF-8."""
    if raw.endswith(b"\r"):
        raw = raw[:-1]
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return "".join(" " if ord(character) in CONTROLS else character for character in line)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32), block_pairs=st.sampled_from([1000] * 9 + [60]))
def test_pairs_stay_pairs(tmp_path_factory, seed, block_pairs):
    chance = random.Random(seed)
    directory = tmp_path_factory.mktemp("hard")
    sides = [hard_lines(chance) for _ in range(2)]
    # A mark at the start of a file is no text; the first line of these must not begin with one.
    for lines in sides:
        lines[0] = b"x" + lines[0]
    names = ("en", "de")
    inputs = [tuple(file_of(directory, *side, chance) for side in zip(names, sides, strict=True))]
    out = directory / "text.en", directory / "text.de"
    files = CorpusFiles("", ("en", "de"), {"train": Input.of(inputs)}, CleaningRules())
    part = parts.clean_part("train", [files], out, directory, wrong_bytes="skip")
    stems = directory / "ids.en", directory / "ids.de"
    limit = LengthLimit(20, skip=False)
    with mock.patch.object(text, "BLOCK_PAIRS", block_pairs):
        lengths = encoding.encode_part(part, (model(), model()), limit, stems, is_train=False)

    expected = [tuple(map(meant, pair)) for pair in zip(*sides, strict=True)]
    whole = [pair for pair in expected if None not in pair]
    kept = [pair for pair in whole if all(side.strip(UNSEEN) for side in pair)]
    assert part.pairs_read == LINES
    assert part.removed_by_rule().get(parts.NOT_UTF8, 0) == sum(None in pair for pair in expected)
    assert part.pairs == len(kept) == LINES - sum(part.removed.values())
    assert list(zip(*map(text.read_lines, out), strict=True)) == kept
    for stem, lines in zip(stems, zip(*kept, strict=True), strict=True):
        ids, offsets = (np.load(f"{stem}.{kind}.npy") for kind in ("ids", "offsets"))
        alone = subwords.encode_lines(model(), list(lines))
        assert lengths[stems.index(stem)].tolist() == [*map(len, alone)]
        cut = [sentence if len(sentence) <= 20 else [*sentence[:19], 1] for sentence in alone]
        assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == cut
