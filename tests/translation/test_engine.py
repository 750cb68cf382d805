"""The Python interface: what the command says, as Python values."""

import hvd_nmt
from hvd_nmt import translate
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.translation.settings import Settings


def test_translations_and_scores_are_those_of_the_command(toy_run, toy_data, tmp_path):
    sources, targets = (
        (toy_data / f"dev.{language}").read_text(encoding="utf-8").splitlines()[:12]
        for language in ("en", "de")
    )
    model = hvd_nmt.load(toy_run, settings=Settings(decoding=Decoding(min_length=6)))
    lines, scores = model.translate(sources), model.score(zip(sources, targets, strict=True))
    (tmp_path / "en").write_text("\n".join(sources))
    (tmp_path / "de").write_text("\n".join(targets))
    words = ["--run", str(toy_run), "--input", str(tmp_path / "en"), "--output"]
    pairs = ["--target", str(tmp_path / "de")]
    assert translate.main([*words, str(tmp_path / "out"), "--min-length", "6"]) == 0
    assert translate.main([*words, str(tmp_path / "scores"), *pairs]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == lines
    assert any(lines)
    shown = (tmp_path / "scores").read_text().splitlines()
    assert shown == [f"{score:.4f}" for score in scores]
