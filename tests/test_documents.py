"""README, CONTRIBUTING, docs/ and configs/ say what is there: paths, links, options, values."""

import re
import shlex
from pathlib import Path

import pytest

from hvd_nmt import config
from hvd_nmt.common import errors
from hvd_nmt.config import command_line

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hvd_nmt"
HISTORY = ROOT / "CHANGELOG.md"  # names files as they were
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "launch/*.md", "hostfiles/*.md", "configs/*.yaml")
    for path in ROOT.glob(pattern)
)
PAGES = [path for path in DOCUMENTS if path.suffix == ".md"]
FOLDERS = "hvd_nmt|tests|docs|configs|launch|hostfiles|notebooks"
COMMANDS = sorted(path.stem for path in PACKAGE.glob("[!_]*.py"))
FILES_OF_USERS = {"config.yaml", "hvd_nmt.yaml"}
# Of programs that are not ours.
FOREIGN_OPTIONS = {"--logdir", "--load-only"}


def each(paths):
    return pytest.mark.parametrize(
        "path", paths, ids=lambda path: path.relative_to(ROOT).as_posix()
    )


@each([path for path in DOCUMENTS if path != HISTORY])
def test_every_path_that_is_named_exists(path):
    text = path.read_text(encoding="utf-8")
    named = re.findall(rf"(?<![\w./<-])((?:{FOLDERS})/[\w./-]*\w)", text)
    named += re.findall(r"`([\w./-]+\.(?:py|sh|yaml|ipynb|cfg|toml))`", text)
    places = (ROOT, PACKAGE, path.parent)
    ours = [name for name in named if Path(name).name not in FILES_OF_USERS]
    assert not [name for name in ours if not any((place / name).exists() for place in places)]


@each([path for path in DOCUMENTS if path != HISTORY])
def test_every_module_that_is_named_exists(path):
    for dotted in set(re.findall(r"\bhvd_nmt((?:\.[a-z_]\w*)+)", path.read_text(encoding="utf-8"))):
        *parents, name = dotted[1:].split(".")
        folder = PACKAGE.joinpath(*parents)
        if (folder / f"{name}.py").exists() or (folder / name).is_dir() or dotted == ".yaml":
            continue
        source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        assert re.search(rf"\b{name}\b", source.read_text(encoding="utf-8")), f"hvd_nmt{dotted}"


@each(PAGES)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
            assert anchor in slugs, target


@pytest.fixture(scope="module")
def options(help_of):
    """Command -> its options, by --help-all; "" -> all, with those of launchers and tests."""
    found = {"": set(FOREIGN_OPTIONS)}
    launchers = filter(Path.is_file, ROOT.glob("launch/*"))
    for path in [*launchers, ROOT / "Makefile", ROOT / "tests/conftest.py"]:
        found[""] |= set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", path.read_text("utf-8")))
    for name in COMMANDS:
        found[name] = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w.-]*", help_of(name))) | {
            "--help-all"
        }
    for own in list(found.values()):
        found[""] |= own | {"--version"}
    return found


@each(PAGES)
def test_every_option_that_is_named_exists(path, options):
    text = path.read_text(encoding="utf-8")
    for name, rest in re.findall(r"hvd_nmt\.(\w+)((?:[^\n|;#`]|(?<=\\)\n)*)", text):
        own, _, of_run = rest.split(" < ")[0].partition(" train ")
        for command, said in ((name, own), ("train", of_run)):
            words = set(re.findall(r"(?<=\s)--[a-z][\w.-]*\w", said))
            assert words <= options.get(command, words), f"{command} {words - options[command]}"
    if path != HISTORY:
        quoted = " ".join(re.findall(r"`([^`\n]+)`", text))
        assert set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", quoted)) <= options[""]


def test_the_tree_of_contributing_names_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)
    assert sorted(named) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*.yaml")), ids=lambda path: path.stem)
def test_a_configuration_is_what_its_command_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no hvd_nmt.yaml here
    comments = re.match(r"(#.*\n)+", path.read_text(encoding="utf-8"))[0]
    command = comments.split("Same as:", 1)[1].replace("#", "").replace("\\\n", " ")
    python, m, module, *words = shlex.split(command)
    assert (python, m, module) == ("python", "-m", "hvd_nmt.train")
    for options in (words, ["--config", str(path)]):
        assert config.load(path) == command_line.run_config(config.Config, "", "", options)


def test_the_table_of_exit_codes_is_complete():
    table = (ROOT / "docs/exit-codes.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == {0, 1, 130, *errors.BY_EXIT_CODE}
