"""Archives: only what was asked for comes out, hostile ones are refused, nothing gets astray."""

import gzip
import io
import os
import random
import tarfile

import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.preparation.download import archive

WANTED = "data/text.en"
OTHER = "data/text.de"
GOOD = {WANTED: b"one\ntwo\n", OTHER: b"eins\nzwei\n", "data/README": b"read me"}


def tar_of(*entries, mode="w:gz", **options):
    """A tar of (name, content or None, changes to the TarInfo)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, **options) as made:
        for name, content, *changes in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            for key, value in dict(*changes).items():
                setattr(info, key, value)
            made.addfile(info, io.BytesIO(content or b""))
    return stream.getvalue()


def plain(*extra, **options):
    """A good tar with more entries after the good ones."""
    return tar_of(*((name, content) for name, content in GOOD.items()), *extra, **options)


def link(to, hard=False):
    return {"type": tarfile.LNKTYPE if hard else tarfile.SYMTYPE, "linkname": to}


def huge_header():
    """A tar whose first header is a name of 40 MB."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 40_000_000
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + b"a" * 40_000_000, 1)


HOSTILE = {
    "absolute path": (lambda: plain(("/tmp/evil", b"x")), "absolute path"),
    "parent": (lambda: plain(("data/../../evil", b"x")), r'by "\.\."'),
    "backslashes": (lambda: plain(("..\\evil", b"x")), "odd name"),
    "drive": (lambda: plain(("C:evil", b"x")), "odd name"),
    "control character": (lambda: plain(("data/\x1b[31mred", b"x")), "odd name"),
    "not UTF-8": (lambda: plain(("data/\udce4", b"x"), format=tarfile.GNU_FORMAT), "odd name"),
    "absolute symbolic link": (
        lambda: plain(("data/link", None, link("/etc/passwd"))), "outside of it"),
    "symbolic link out": (
        lambda: plain(("data/link", None, link("../../evil"))),
        r"would link to '\.\./\.\./evil', which is outside"),
    # The target of a hard link is named from the archive's top, not from beside the link.
    "hard link out": (
        lambda: plain(("data/link", None, link("../evil", hard=True))), "outside of it"),
    "wanted is a symbolic link": (lambda: tar_of((WANTED, None, link("README"))), "en is a link"),
    "wanted is a pipe": (
        lambda: tar_of((WANTED, None, {"type": tarfile.FIFOTYPE})), "is a special file"),
    "wanted twice": (lambda: plain((f"./{WANTED}", b"other")), "is there twice"),
    "bomb in a wanted member": (
        lambda: tar_of((WANTED, bytes(12_000_000)), (OTHER, b"x")), "over 10.0 MB come out"),
    "bomb after the end": (
        lambda: gzip.compress(gzip.decompress(plain()) + bytes(12_000_000), 1), "over 10.0 MB"),
    "huge header": (huge_header, "its headers have over"),
    "no wanted member": (lambda: tar_of((WANTED, b"x")), r"does not hold data/text\.de"),
    "zip": (lambda: b"PK\3\4" + bytes(99), "Not a gzipped file"),
}  # fmt: skip


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def unpack(tmp_path):
    """Unpacks both wanted members of an archive given as bytes into tmp_path/out."""
    (tmp_path / "out").mkdir()

    def extract(content, **options):
        (tmp_path / "in.bin").write_bytes(content)
        wanted = {WANTED: tmp_path / "out" / "en", OTHER: tmp_path / "out" / "de"}
        archive.extract(tmp_path / "in.bin", wanted, **options)
        return {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    return extract


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_whole(unpack, tmp_path, name, monkeypatch):
    make, why = HOSTILE[name]
    content = make()
    monkeypatch.chdir(tmp_path / "out")
    before = set(os.listdir("/tmp"))
    with pytest.raises(DataError, match=rf"in\.bin .*{why}") as caught:
        unpack(content)
    assert "\n" not in str(caught.value)
    assert everything(tmp_path / "out") == {}
    assert sorted(os.listdir(tmp_path)) == ["in.bin", "out"]
    assert "evil" not in set(os.listdir("/tmp")) - before


@pytest.mark.parametrize(
    "content",
    [
        plain(format=tarfile.PAX_FORMAT),
        tar_of(*((f"./{name}", content) for name, content in GOOD.items())),
        plain(("data", None, {"type": tarfile.DIRTYPE}), ("latest", None, link("data/README"))),
        plain(("data/same", None, link("../data/README"))),
        plain(("n" * 300, b"a long name")),
    ],
)
def test_good_archives(unpack, content):
    assert unpack(content) == {"en": GOOD[WANTED], "de": GOOD[OTHER]}


def test_files_there_are_replaced_but_not_through_links(unpack, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("en", "en.unpacked"):
        (tmp_path / "out" / name).symlink_to(outside)
    assert unpack(plain())["en"] == GOOD[WANTED]
    assert outside.read_text() == "mine"
    assert not (tmp_path / "out" / "en").is_symlink()


def test_the_callers_cap_counts_what_is_read(unpack):
    lines = "".join(f"line {number}\n" for number in range(2_000)).encode()
    content = tar_of((WANTED, lines), (OTHER, lines))
    assert len(unpack(content, most_bytes=100_000)) == 2
    with pytest.raises(DataError, match="over 20,000 B come out of it"):
        unpack(content, most_bytes=20_000)


def test_damaged_archives_are_one_sentence(unpack, tmp_path):
    """Cut at every 7th byte, and with bits flipped: an error of ours, or the very content."""
    whole, chance = plain(), random.Random(1)
    damaged = [b"plain text" * 100, plain(mode="w")]
    damaged += [whole[:size] for size in range(0, len(whole), 7)]
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(content))
    sentences = []
    for content in damaged:
        try:
            found = unpack(content)
        except DataError as error:
            sentences.append(str(error))
        else:
            assert found == {"en": GOOD[WANTED], "de": GOOD[OTHER]}
        for path in (tmp_path / "out").iterdir():
            path.unlink()
    assert len(sentences) > len(damaged) // 2
    assert not any("\n" in sentence for sentence in sentences)
