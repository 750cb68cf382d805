"""Archives: only what was asked for comes out, hostile ones are refused, nothing gets astray."""

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


def link(to):
    return {"type": tarfile.SYMTYPE, "linkname": to}


HOSTILE = {
    "path out": (lambda: plain(("data/../../evil", b"x")), r'by "\.\."'),
    "link out": (
        lambda: plain(("data/link", None, link("../../evil"))),
        r"would link to '\.\./\.\./evil', which is outside"),
    "bomb": (lambda: tar_of((WANTED, bytes(12_000_000)), (OTHER, b"x")), "over 10.0 MB come out"),
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
    with pytest.raises(DataError, match=rf"in\.bin .*{why}") as caught:
        unpack(content)
    assert "\n" not in str(caught.value)
    assert everything(tmp_path / "out") == {}
    assert sorted(os.listdir(tmp_path)) == ["in.bin", "out"]


def test_good_archives(unpack):
    folder, inner = ("data", None, {"type": tarfile.DIRTYPE}), link("data/README")
    for content in (
        plain(folder, ("latest", None, inner), ("n" * 300, b"a long name")),
        tar_of(*((f"./{name}", content) for name, content in GOOD.items())),
    ):
        assert unpack(content) == {"en": GOOD[WANTED], "de": GOOD[OTHER]}


def test_files_there_are_replaced_but_not_through_links(unpack, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("en", "en.unpacked"):
        (tmp_path / "out" / name).symlink_to(outside)
    assert unpack(plain())["en"] == GOOD[WANTED]
    assert outside.read_text() == "mine"
    assert not (tmp_path / "out" / "en").is_symlink()


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
