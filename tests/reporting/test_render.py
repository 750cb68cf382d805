"""The page as a whole: well-formed, alone, escaped, and word for word as in tests/golden/pages."""

import dataclasses
import math
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import RunError
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.read import read_any_run
from hvd_nmt.records.record import Run, Samples
from hvd_nmt.reporting import answer, plots, render
from hvd_nmt.reporting.run_summary import RunSummary

NOW_S = 1_700_010_000.0
HOSTILE = "<script>alert('x')</script> | `rm` & \"q\" </svg>"
GOLDEN_RUN = Path(__file__).resolve().parents[1] / "golden" / "run"
SIDE = {"text_bytes": 9, "input": {"n_bytes": 9, "sha256": ""}}
PART = {
    "pairs_read": 1010, "pairs": 1000, "removed": {"empty": 10, "too long": 0}, "truncated": 3,
    "source": {**SIDE, "kept_text_bytes": 1_500_000, "tokens": 20_000},
    "target": {**SIDE, "kept_text_bytes": 2_500_000, "tokens": 30_000},
}  # fmt: skip
MANIFEST = {
    "source_language": "en", "target_language": "de", "max_length": 128, "parts": {"train": PART},
    "files": {"train.en.ids.npy": {"n_bytes": 500_000}, "dev.en": {"n_bytes": 7}},
}  # fmt: skip
LOG = Path(__file__).resolve().parents[1] / "records" / "nohup.out"


class Page:
    """The elements of a page, as a strict reader sees them: a tag that stays open is an error."""

    def __init__(self, text):
        closed = re.sub("<(meta|br)([^>]*)>", r"<\1\2/>", text)
        elements = [*ElementTree.fromstring(closed).iter()]
        self.tags = [element.tag.rpartition("}")[2] for element in elements]
        self.attributes = [pair for element in elements for pair in element.items()]
        self.headings = ["".join(element.itertext()) for element in elements if element.tag == "h3"]
        assert [name for name, _ in self.attributes if name.startswith("on")] == []

    def values(self, name):
        return [value for attribute, value in self.attributes if attribute == name]


@pytest.fixture(autouse=True)
def quick_figures(request, monkeypatch):
    """Drawing takes a second: only tests with figures in their name do it."""
    if "figures" not in request.node.name:
        monkeypatch.setattr(plots, "draw", lambda *_, **options: "")


def rendered(run):
    page, markdown = render.rendered(RunSummary(run, NOW_S))
    return Page(page), page, markdown


def without_version(markdown):
    return re.sub("Made by hvd_nmt [^ ]+ on", "Made by hvd_nmt VERSION on", markdown)


def text_of(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_page_with_figures_is_well_formed_and_needs_nothing_else(two_host_run):
    page, text, _ = rendered(two_host_run())
    assert [value for _, value in page.attributes if "://" in value] == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "url(http" not in text
    assert "@import" not in text
    assert page.tags.count("svg") == 9
    assert page.tags.count("use") > 50  # markers, which name their shape
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in page.values("href")} <= set(ids)


def test_the_report_of_two_hosts(two_host_run, golden_page):
    run = two_host_run(path=GOLDEN_RUN, manifest=MANIFEST)
    page, _, markdown = rendered(run)
    golden_page("two-hosts.txt", without_version(markdown))
    # The other page has the same.
    assert all(heading in page.headings for heading in re.findall("### ([0-9]+. .*)", markdown))


def test_the_report_of_a_log(tmp_path, golden_page):
    shutil.copyfile(LOG, tmp_path / "nohup.out")
    *_, markdown = rendered(read_any_run(tmp_path / "nohup.out"))
    golden_page("log.txt", without_version(markdown).replace(str(tmp_path), ""))


def test_the_report_of_nothing_without_figures(tmp_path, golden_page):
    page, text, markdown = rendered(Run("empty", tmp_path, "hvd_nmt"))
    path = answer.plain(str(tmp_path))
    golden_page("nothing.txt", without_version(markdown).replace(path, "empty"))
    assert "svg" not in page.tags
    assert text.count('class="unknown"') == 11
    assert not re.search("None|nan", text_of(text) + markdown)


@pytest.fixture
def hostile_run(two_host_run, tmp_path):
    """A run whose every text is an attack."""
    with EventStore(RunDirectory(tmp_path), []) as store:
        row = " | ".join(3 * [HOSTILE.replace("|", "\\|")])
        samples = f"| a | b | c |\n|---|---|---|\n| {row} |"
        store.write(Samples(9, samples))
    run = two_host_run()
    header = {"gpus": [{"index": 0, "name": HOSTILE}]}
    telemetry = (dataclasses.replace(of, host=HOSTILE, header=header) for of in run.telemetry)
    return two_host_run(
        name=HOSTILE, path=tmp_path, source=HOSTILE, hosts=(HOSTILE, "b"),
        config={HOSTILE: {HOSTILE: HOSTILE}}, environment={"a": HOSTILE}, problems=(HOSTILE,),
        telemetry=tuple(telemetry),
    )  # fmt: skip


def test_nothing_of_a_run_and_its_figures_becomes_markup(hostile_run):
    page, text, markdown = rendered(hostile_run)
    assert "script" not in page.tags
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "<script" not in markdown
    assert "</svg>" not in markdown
    assert "<" not in re.sub(r"`[^`]*`", "", markdown.replace("\\`", ""))
    # A cell stays one cell.
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    samples = next(i for i, row in enumerate(rows) if row.startswith("| source"))
    for row in rows[samples : samples + 3]:
        assert len(re.split(r"(?<!\\)\|", row)) == 5


def test_a_run_that_diverged_still_makes_a_page_with_figures(two_host_run):
    lost = {"loss": math.nan, "gradient_norm": math.inf}
    scored = tuple(dataclasses.replace(e, loss=math.nan) for e in two_host_run().evaluations)
    rendered(two_host_run(lambda i: lost if i.step > 300 else {}, evaluations=scored))


def test_both_files_are_written_and_nothing_else(two_host_run, tmp_path):
    folder = tmp_path / "deep" / "report"
    run = two_host_run(problems=("what is no Unicode: \udc80",))
    written = render.write(RunSummary(run, NOW_S), folder)
    assert written == [folder / "report.html", folder / "report.md"]
    assert sorted(folder.iterdir()) == sorted(written)
    first = written[0].read_bytes()
    assert b"no Unicode: \\udc80" in first
    render.write(RunSummary(run, NOW_S), folder)
    assert written[0].read_bytes() == first


def test_a_folder_that_cannot_be_written_is_named(two_host_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--output"):
        render.write(RunSummary(two_host_run()), tmp_path / "file")
