"""The page as a whole: well-formed, alone, escaped, and with the right numbers."""

import dataclasses
import html.parser
import math
import re

import pytest

from hvd_nmt.common.errors import RunError
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import cost, markup, plots, questions, render
from hvd_nmt.telemetry.events import EventStore

NOW_S = 1_700_010_000.0
HOSTILE = "<script>alert('x')</script> | `rm` & \"q\" </svg>"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(html.parser.HTMLParser):
    """What a browser would see; `problems` holds tags that do not balance."""

    def __init__(self, text):
        super().__init__()
        self.open, self.problems, self.tags = [], [], []
        self.ids, self.links, self.headings, self.references = [], [], [], []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> stays open" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name == "href":
                self.links.append(value)
            if name.startswith("on"):
                self.problems.append(f"<{tag} {name}>")
            if value and "://" in value and name != "xmlns":
                self.references.append(value)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, text):
        if self.open and self.open[-1] == "h3":
            self.headings.append(text.strip())


@pytest.fixture(autouse=True)
def quick_figures(request, monkeypatch):
    """Drawing takes a second: only tests with figures in their name get real ones."""
    if "figures" not in request.node.name:
        blank = '<svg viewBox="0 0 1 1" xmlns="http://www.w3.org/2000/svg"><path id="p" /></svg>'
        monkeypatch.setattr(plots, "draw_panels", lambda *_, **__: blank)


def rendered(*runs, prices=None):
    page, markdown = render.rendered(runs, prices or cost.Prices(), NOW_S)
    return Page(page), page, markdown


def text_of(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_page_with_figures_is_well_formed_and_needs_nothing_else(two_host_run):
    page, text, _ = rendered(two_host_run())
    assert page.problems == []
    assert page.references == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "url(http" not in text
    assert "@import" not in text
    assert page.tags.count("svg") == 11
    assert page.tags.count("use") > 50  # markers, which name their shape
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_every_question_is_there_with_its_answer(two_host_run):
    run = two_host_run()
    page, text, markdown = rendered(run)
    for number, answer in enumerate(questions.answers(questions.gather(run, NOW_S)), start=1):
        assert answer.question in page.headings
        assert f'id="run1-q{number}"' in text
        assert f"### {number}. {answer.question}" in markdown
    assert "Network-bound: 1.2" in text
    assert "27 min 31 s" in text
    assert "21.0 ± 1.2" in text  # BLEU


def test_ids_are_unique_and_links_lead_somewhere(two_host_run):
    page, *_ = rendered(two_host_run(), two_host_run(name="other"))
    assert len(page.ids) == len(set(page.ids))
    assert len(page.links) == 22
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


@pytest.fixture
def hostile_run(two_host_run, tmp_path):
    """A run whose every text is an attack."""
    with EventStore(tmp_path) as store:
        row = " | ".join(3 * [HOSTILE.replace("|", "\\|")])
        store.text(9, "samples", f"| a | b | c |\n|---|---|---|\n| {row} |")
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
    assert page.problems == []
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


def test_a_record_of_nothing_still_makes_a_page(tmp_path):
    page, text, markdown = rendered(Run("empty", tmp_path, "hvd_nmt"))
    assert page.problems == []
    assert "svg" not in page.tags
    assert text.count('class="unknown"') == 12  # the questions, and the energy
    assert "None" not in text_of(text)
    assert "None" not in markdown
    assert "nan" not in text_of(text)


def test_a_run_that_diverged_still_makes_a_page_with_figures(two_host_run):
    lost = {"loss": math.nan, "gradient_norm": math.inf}
    scored = tuple(dataclasses.replace(e, loss=math.nan) for e in two_host_run().evaluations)
    page, *_ = rendered(two_host_run(lambda i: lost if i.step > 300 else {}, evaluations=scored))
    assert page.problems == []


def test_a_run_that_goes_on_and_one_that_was_killed_say_so(two_host_run):
    run = two_host_run(finished=False, ended_s=NOW_S - 12)
    assert "Still running: last record 12 s ago." in rendered(run)[1]
    run = two_host_run(finished=False)
    assert "Ended without saying so: last record 2 h 19 min ago." in rendered(run)[1]


def test_several_runs_are_compared_with_the_one_of_fewest_ranks(two_host_run):
    one = two_host_run(name="one", hosts=("v100a",))
    four = two_host_run(lambda i: {"tokens_per_s": 2 * i.tokens_per_s}, name="four")
    page, text, markdown = rendered(four, one)
    assert page.problems == []
    rows = [line for line in markdown.splitlines() if line.startswith(("| one", "| four"))]
    # Twice the tokens with four times the ranks.
    for row, begin, efficiency in zip(
        rows, ("| four | 4 | 2 |", "| one | 1 | 1 |"), (50, 100), strict=True
    ):
        assert row.startswith(begin)
        assert f" {efficiency} % |" in row
    assert "Loss of all runs: " in text
    assert page.headings.count("Was the network the bottleneck?") == 2


def test_runs_of_one_name_are_told_apart_by_their_paths(two_host_run, tmp_path):
    *_, markdown = rendered(two_host_run(), two_host_run(path=tmp_path / "b"))
    assert "## two-hosts" not in markdown
    assert markup.markdown_text(str(tmp_path / "b")) in markdown


def test_energy_and_cost_follow_from_power_and_prices(two_host_run):
    prices = cost.Prices(cost.price("3.60EUR", "--a"), cost.price("$ 0.5", "--b"))
    run = two_host_run(ended_s=two_host_run().started_s + 3600)
    text = text_of(rendered(run, prices=prices)[1])
    measured_s = run.telemetry[0].samples[-1]["time_s"] - run.telemetry[0].samples[0]["time_s"]
    kwh = 4 * 90 * measured_s / 3.6e6
    assert f"The GPUs took {kwh:.2f} kWh." in text
    assert f"At 0.50 $ per kWh that is {0.5 * kwh:.2f} $." in text
    assert "Rent of 2 hosts for 1 h at 3.60 EUR per host and hour: 7.20 EUR." in text


def test_a_column_of_figures_is_set_as_figures(two_host_run):
    *_, markdown = rendered(two_host_run())
    lines = markdown.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| part | time | share |"))
    assert lines[head + 1] == "|---|---:|---:|"


def test_both_files_are_written_and_nothing_else(two_host_run, tmp_path):
    folder = tmp_path / "deep" / "report"
    written = render.write([two_host_run()], folder, now_s=NOW_S)
    assert written == [folder / "report.html", folder / "report.md"]
    assert sorted(folder.iterdir()) == sorted(written)
    first = written[0].read_bytes()
    render.write([two_host_run()], folder, now_s=NOW_S)
    assert written[0].read_bytes() == first


def test_text_that_is_no_unicode_does_not_stop_the_report(two_host_run, tmp_path):
    written = render.write([two_host_run(problems=("lone \udc80",))], tmp_path, now_s=NOW_S)
    assert "lone \\udc80" in written[0].read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_named(two_host_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--output"):
        render.write([two_host_run()], tmp_path / "file", now_s=NOW_S)
