"""Archives: only what was asked for comes out, hostile ones are refused, nothing gets astray."""

import gzip
import io
import os
import random
import stat
import struct
import tarfile
import zipfile

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


def zip_of(*entries):
    """A zip of (name, content, changes to the ZipInfo)."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, content, *changes in entries:
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.compress_type = zipfile.ZIP_DEFLATED
            for key, value in dict(*changes).items():
                setattr(info, key, value)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("warnings.warn", lambda *_, **__: None)  # of duplicate names
                made.writestr(info, content)
    return stream.getvalue()


def zipped(*extra):
    """A good zip with more entries after the good ones."""
    return zip_of(*GOOD.items(), *extra)


def kind(mode):
    return {"external_attr": (mode | 0o644) << 16}


def link(to, hard=False):
    return {"type": tarfile.LNKTYPE if hard else tarfile.SYMTYPE, "linkname": to}


def edited(content, old, new):
    assert content.count(old) >= 1
    return content.replace(old, new)


def overlapping_zip():
    """A zip whose second entry is the first one's bytes again, under another name."""
    content = bytearray(zip_of((WANTED, b"x" * 50), (OTHER, b"x" * 50)))
    end = content.rindex(b"PK\x05\x06")
    second = content.rindex(b"PK\x01\x02", 0, end)
    content[second + 42 : second + 46] = struct.pack("<I", 0)
    return bytes(content)


def lying_zip(n_bytes):
    """A zip whose headers promise 10 bytes of a member that has more."""
    content = zip_of((WANTED, bytes(n_bytes)), (OTHER, b"x"))
    return edited(content, struct.pack("<I", n_bytes), struct.pack("<I", 10))


def huge_header():
    """A tar whose first header is a name of 40 MB."""
    block = bytearray(tarfile.TarInfo("././@LongLink").tobuf(tarfile.GNU_FORMAT))
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 40_000_000
    block = info.tobuf(tarfile.GNU_FORMAT)
    return gzip.compress(block + b"a" * 40_000_000, 1)


HOSTILE = {
    "tar: absolute path": lambda: plain(("/tmp/evil", b"x")),
    "tar: absolute path, two slashes": lambda: plain(("//tmp/evil", b"x")),
    "tar: parent": lambda: plain(("../evil", b"x")),
    "tar: parent inside": lambda: plain(("data/../../evil", b"x")),
    "tar: parent at the end": lambda: plain(("data/..", b"x")),
    "tar: parent that stays": lambda: plain(("a/../data/x", b"x")),
    "tar: backslashes": lambda: plain(("..\\evil", b"x")),
    "tar: drive": lambda: plain(("C:evil", b"x")),
    "tar: control character": lambda: plain(("data/a\nb", b"x")),
    "tar: escape sequence": lambda: plain(("data/\x1b[31mred", b"x")),
    "tar: direction mark": lambda: plain(("data/\u202eexe.txt", b"x")),
    "tar: not UTF-8": lambda: plain(("data/\udce4", b"x"), format=tarfile.GNU_FORMAT),
    "tar: absolute symbolic link": lambda: plain(("data/link", None, link("/etc/passwd"))),
    "tar: symbolic link out": lambda: plain(("data/link", None, link("../../evil"))),
    "tar: link to parent": lambda: plain(("data/link", None, link("../.."))),
    "tar: hard link out": lambda: plain(("data/link", None, link("../evil", hard=True))),
    "tar: absolute hard link": lambda: plain(("link", None, link("/etc/passwd", hard=True))),
    "tar: wanted is a symbolic link": lambda: tar_of((WANTED, None, link("README"))),
    "tar: wanted is a hard link": lambda: tar_of((WANTED, None, link("data/README", hard=True))),
    "tar: file through a link": lambda: tar_of(
        ("data", None, link("/tmp")), (WANTED, b"x"), (OTHER, b"x")
    ),
    "tar: character device": lambda: plain(("null", None, {"type": tarfile.CHRTYPE})),
    "tar: block device": lambda: plain(("disk", None, {"type": tarfile.BLKTYPE})),
    "tar: pipe": lambda: plain(("pipe", None, {"type": tarfile.FIFOTYPE})),
    "tar: wanted is a pipe": lambda: tar_of((WANTED, None, {"type": tarfile.FIFOTYPE})),
    "tar: wanted twice": lambda: plain((WANTED, b"other")),
    "tar: wanted twice, by another spelling": lambda: plain((f"./{WANTED}", b"other")),
    "tar: bomb in a wanted member": lambda: tar_of((WANTED, bytes(12_000_000)), (OTHER, b"x")),
    "tar: bomb in another member": lambda: plain(("zeros", bytes(12_000_000))),
    "tar: bomb after the end": lambda: gzip.compress(
        gzip.decompress(plain()) + bytes(12_000_000), 1
    ),
    "tar: huge header": huge_header,
    "tar: pax header with an absolute path": lambda: plain(
        ("ok", b"x", {"pax_headers": {"path": "/tmp/evil"}}), format=tarfile.PAX_FORMAT
    ),
    "zip: absolute path": lambda: zipped(("/tmp/evil", b"x")),
    "zip: parent": lambda: zipped(("../evil", b"x")),
    "zip: parent inside": lambda: zipped(("data/../../evil", b"x")),
    "zip: backslashes": lambda: zipped(("..\\evil", b"x")),
    "zip: drive": lambda: zipped(("C:evil", b"x")),
    "zip: NUL in a name": lambda: edited(zipped(("evil.txt#x", b"x")), b"#x", b"\0x"),
    "zip: control character": lambda: zipped(("data/a\nb", b"x")),
    "zip: symbolic link": lambda: zipped(("data/link", b"/etc/passwd", kind(stat.S_IFLNK))),
    "zip: wanted is a symbolic link": lambda: zip_of((WANTED, b"README", kind(stat.S_IFLNK))),
    "zip: device": lambda: zipped(("null", b"", kind(stat.S_IFCHR))),
    "zip: pipe": lambda: zipped(("pipe", b"", kind(stat.S_IFIFO))),
    "zip: wanted twice": lambda: zipped((WANTED, b"other")),
    "zip: bomb": lambda: zip_of((WANTED, bytes(12_000_000)), (OTHER, b"x")),
    "zip: headers that lie": lambda: lying_zip(12_000_000),
    "zip: overlapping": overlapping_zip,
    "zip: encrypted": lambda: edited(
        zip_of((WANTED, b"x", {"flag_bits": 0})), b"PK\x01\x02\x14\x03\x14\x00\x00\x00",
        b"PK\x01\x02\x14\x03\x14\x00\x01\x00",
    ),
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


def test_there_are_at_least_40():
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_whole(unpack, tmp_path, name, monkeypatch):
    content = HOSTILE[name]()
    monkeypatch.chdir(tmp_path / "out")
    before = set(os.listdir("/tmp"))
    with pytest.raises(DataError, match=r"in\.bin (is refused|is damaged|does not hold)") as caught:
        unpack(content)
    assert "\n" not in str(caught.value)
    assert everything(tmp_path / "out") == {}
    assert sorted(os.listdir(tmp_path)) == ["in.bin", "out"]
    assert "evil" not in set(os.listdir("/tmp")) - before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tar: absolute path", "absolute path"),
        ("tar: parent", r'by "\.\."'),
        ("tar: not UTF-8", "odd name"),
        ("tar: symbolic link out", r"would link to '\.\./\.\./evil', which is outside"),
        ("tar: wanted is a hard link", r"text\.en is a link"),
        ("tar: pipe", "'pipe' is a special file"),
        ("tar: wanted twice, by another spelling", "is there twice"),
        ("tar: bomb in another member", "over 10.0 MB come out of it"),
        ("tar: huge header", "its headers have over"),
        ("zip: bomb", "is damaged .*Not a gzipped file"),
    ],
)
def test_the_sentence_says_why(unpack, name, why):
    with pytest.raises(DataError, match=why):
        unpack(HOSTILE[name]())


@pytest.mark.parametrize(
    "content",
    [
        plain(),
        plain(format=tarfile.GNU_FORMAT),
        plain(format=tarfile.USTAR_FORMAT),
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


def test_a_missing_member_is_named_and_nothing_written(unpack, tmp_path):
    with pytest.raises(archive.DamagedError, match=r"does not hold data/text\.de"):
        unpack(tar_of((WANTED, b"x")))
    assert everything(tmp_path / "out") == {}


def test_the_callers_cap_counts_what_is_read(unpack):
    lines = "".join(f"line {number}\n" for number in range(2_000)).encode()
    content = tar_of((WANTED, lines), (OTHER, lines))
    assert len(unpack(content, most_bytes=100_000)) == 2
    with pytest.raises(DataError, match="over 20,000 B come out of it"):
        unpack(content, most_bytes=20_000)


def test_damaged_archives_are_one_sentence(unpack, tmp_path):
    """Cut at every 7th byte, and with bits flipped: an error of ours, or the very content."""
    whole, chance = plain(), random.Random(1)
    damaged = [whole[:size] for size in range(0, len(whole), 7)]
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


def test_no_archive_and_no_file(unpack, tmp_path):
    for content in (b"", b"plain text" * 100, b"\x1f\x8b", b"PK", zipped(), plain(mode="w")):
        with pytest.raises(archive.DamagedError, match="fetch it again"):
            unpack(content)
    with pytest.raises(DataError, match=r"none\.tgz cannot be used: No such file"):
        archive.extract(tmp_path / "none.tgz", {WANTED: tmp_path / "out" / "en"})
