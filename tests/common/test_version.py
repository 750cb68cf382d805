"""Which code this is."""

from hvd_nmt.common import version


def test_the_code_hash_sees_any_byte_of_any_module(tmp_path, monkeypatch):
    package = tmp_path / "hvd_nmt"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(version, "_PACKAGE", package)

    first = version.code_hash()
    assert version.code_hash() == first
    (package / "deep" / "module.py").write_text("x = 2\n")
    second = version.code_hash()
    (package / "deep" / "module.py").rename(package / "deep" / "renamed.py")

    assert len({first, second, version.code_hash()}) == 3
