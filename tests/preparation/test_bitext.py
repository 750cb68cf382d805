"""Files with both sides: told by their content, read as a stream, refused in one sentence."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from itertools import repeat
from pathlib import Path

import pytest
from backports import zstd

from hvd_nmt import prepare
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import bitext, corpus_files
from hvd_nmt.preparation.bitext import ANOTHER_SEGMENT, FEW_COLUMNS, NO_SEGMENT, Columns

PAIRS = [(f"the dog {i}", f"der Hund ä {i}") for i in range(60)]
TSV = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
HEAD = '<?xml version="1.0" encoding="{}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">'


def entry(*segments):
    """A translation unit of (language, XML) pairs."""
    inside = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in segments)
    return f'<tu><prop type="x">q</prop>{inside}</tu>\n'


def tmx(*entries, encoding="UTF-8"):
    body = f"<header srclang='en'/><body>\n{''.join(entries)}</body></tmx>\n"
    return (HEAD.format(encoding) + body).encode(encoding)


def zipped(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return stream.getvalue()


def tarred(content):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x.en"), io.BytesIO(content))
    return stream.getvalue()


MEMORY = tmx(*(entry(("en-US", source), ("DE", target)) for source, target in PAIRS))
SIDES = ["".join(line + "\n" for line in side) for side in zip(*PAIRS, strict=True)]
MOSES = {"README": "x", "News__de-en__xml": "<a/>", "News__de-en__ids": "1\n",
         "News__de-en__en": SIDES[0], "News__de-en__de": SIDES[1]}  # fmt: skip


def read(folder, content, languages=("en", "de"), columns=None):
    path = folder / "file"  # no name says what it is
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [
        (source.decode(), target.decode(), rule)
        for block in bitext.blocks(path, languages, columns or Columns())
        for source, target, rule in zip(*block.lines, block.rules or repeat(""), strict=False)
    ]


@pytest.mark.parametrize(
    "content",
    [
        TSV.encode(), b"\xef\xbb\xbf" + TSV.replace("\n", "\r\n").encode(), MEMORY,
        tmx(*(entry(("en", a), ("de", b)) for a, b in PAIRS), encoding="UTF-16"),
        tmx(*(entry(("eng", a), ("deu", b)) for a, b in PAIRS), encoding="ISO-8859-1"),
        zipped(**MOSES), zipped(**{"x/memory__tmx": MEMORY, "LICENSE": ""}), zipped(a__tsv=TSV),
        gzip.compress(MEMORY), bz2.compress(TSV.encode()), lzma.compress(MEMORY),
        zstd.compress(TSV.encode()[:99]) + zstd.compress(TSV.encode()[99:]),
    ],
)  # fmt: skip
def test_a_kind_is_told_by_content(content, tmp_path):
    assert read(tmp_path, content) == [(*pair, "") for pair in PAIRS]


def test_entries_of_a_translation_memory(tmp_path):
    rows = read(tmp_path, tmx(
        entry(("en-GB", "colour"), ("en", "color"), ("de-AT", "Farbe"), ("fr", "couleur")),
        entry(("en", 'a <bpt i="1">&lt;b&gt;</bpt><hi>b</hi><ept i="1"/> &amp; c<ph>{0}</ph>\n  d'),
              ("de", "x")),
        entry(("en", "one"), ("de", "eins"), ("de", "ein")), entry(("fr", "seul"), ("de", "nur")),
    ))  # fmt: skip
    assert rows == [
        ("color", "Farbe", ""), ("a b & c d", "x", ""),
        ("one", "eins", ""), ("one", "ein", ANOTHER_SEGMENT), ("", "nur", NO_SEGMENT),
    ]  # fmt: skip


def test_columns_scores_and_quotes(tmp_path):
    table = '0.9\tx\ta\tb\n0.2\tx\tc\td\nno\tx\te\tf\nshort\n1\tx\t"g ""h""\n\ti"\tj\n'
    columns = Columns(3, 4, {1: 0.5}, "csv")
    assert read(tmp_path, table, columns=columns) == [
        ("a", "b", ""), ("c", "d", "column 1 below 0.5"), ("e", "f", "column 1 is no number"),
        ("short", "", FEW_COLUMNS), ('g "h" i', "j", ""),
    ]  # fmt: skip
    assert read(tmp_path, 'a "b\t"c" d\n') == [('a "b', '"c" d', "")]
    with pytest.raises(DataError, match="line 1: unexpected end of data: correct its quotes"):
        read(tmp_path, 'x\t"y\n', columns=Columns(quoting="csv"))
    for wrong in ({"source": 1}, {"source": -1, "target": 2}, {"min_scores": {0: 1}}):
        with pytest.raises(ConfigError, match="columns: give those of source and target, from 1"):
            Columns(**wrong)


GROWING = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 10))
BOMB = MEMORY.replace(b'SYSTEM "tmx14.dtd"', f'[<!ENTITY e0 "{"a" * 99}">{GROWING}]'.encode())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty: it needs pairs"), (zipped(x__en="", x__de=""), r"x\.en is empty"),
        ("a\tb\tc\n", "has 3 columns, not those"), ("a\n", "has 1 column, not those of source and"),
        (b"a\tb\n".decode().encode("utf-16"), "is UTF-16"),
        (MEMORY[:700], "line 8: Premature end of data in tag seg line 8: corr"),
        (BOMB.replace(b"dog 7", b"&e0;"), "has the entity &e0;: write its text instead"),
        (BOMB.replace(b"dog 7", b"&e9;"), "line 1: Maximum entity amplification factor exceeded"),
        (BOMB.replace(b'"DE"', b'"&e9;"', 1), "line 4: Maximum entity amplification factor exceed"),
        (MEMORY.replace(b"dog 7", b"&nbsp;"), "has the entity &nbsp;: write its text instead"),
        (tmx(entry(("fr", "x"), ("de-CH", "y"))), "no entry in both en and de: its lang"),
        (zipped(x__en="a", y__en="b", x__de="c"), r"or one \.tmx or \.tsv, but has x\.en, y\.en"),
        (zipped(x__en="a\nb\n", x__de="c\n"), r"file: x\.en has 2 lines, but .*x\.de has 1"),
        (zipped(**MOSES)[:-300], "Cannot read .*File is not a zip file"),
        (tarred(b"x"), "is a tar archive: unpack it with `tar -xf "),
        (gzip.compress(tarred(b"x" * 9999)), "is a tar archive"), (b"%PDF-1.4\n", "is a PDF"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(content, says, tmp_path):
    with pytest.raises(DataError, match=says):
        read(tmp_path, content)


def test_codes_of_a_language():
    known = ("en-US", "EN", "eng", "pt", "zh_TW")
    assert bitext.of_language("en", known) == {"EN"}
    assert bitext.of_language("en", (known[0], *known[2:])) == {"en-US", "eng"}
    assert bitext.of_language("pt_BR", known) == bitext.of_language("x", ()) == set()
    assert bitext.of_language("zh_tw", known) == {"zh_TW"}


def test_one_side_is_refused_with_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("de").write_text(SIDES[1])
    words = ["--vocabulary-size", "60", "--dev-size", "5", "--out", "out"]
    for content in (TSV.encode(), MEMORY, zipped(**MOSES)):
        Path("a b").write_bytes(content)
        assert prepare.main(["--train-source", "a b", "--train-target", "de", *words]) == 3
        assert "--corpus 'a b'`" in capsys.readouterr().err
    assert prepare.main(["--corpus", "a b", "a b", *words]) == 0
    assert capsys.readouterr().out.startswith("train  120 pairs")


def test_tabs_in_the_text_of_one_side_are_text(tmp_path):
    path = tmp_path / "x"
    for text in ("a\tb\n" * 9, "a\tb\n" * 99 + "a\n", "a\tb\n" * 50 + "\ta\tb\n" * 50):
        path.write_text(text)
        bitext.require_one_side(path)


def test_what_looked_like_another_kind(tmp_path):
    """White space beyond ASCII, XML with a namespace, Finder's files, prose, a text copied."""
    with_break = '"voil\u00e0\nencore"\tb\n"a\u2020  \n c"\td\n'
    found = read(tmp_path, with_break, columns=Columns(1, 2, quoting="csv"))
    assert [row[0] for row in found] == ["voil\u00e0 encore", "a\u2020 c"]
    named = MEMORY.replace(b"<tmx ", b"<!-- " + b"x" * 9000 + b' -->\n<tmx xmlns="urn:t" ')
    assert [row[1] for row in read(tmp_path, named)] == [target for _, target in PAIRS]
    with zipfile.ZipFile(tmp_path / "mac", "w") as archive:
        for name, line in (("a.en", "x"), ("a.de", "y"), ("__MACOSX/._a.en", "z")):
            archive.writestr(name, f"{line}\n")
    assert [row[:2] for row in read(tmp_path, (tmp_path / "mac").read_bytes())] == [("x", "y")]
    prose = tmp_path / "us.es"
    prose.write_text("a" * 256 + " ustar es ajustar\n")
    assert list(read_lines(prose)) == ["a" * 256 + " ustar es ajustar"]
    copied = corpus_files.Input.of([(prose, prose)])
    assert [block.pairs for _, _, block in copied.blocks()] == [1]
