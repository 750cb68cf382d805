"""What people read is plain: short sentences, none of the words of tests/dialect.txt."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_nmt.__main__ import COMMANDS

ROOT = Path(__file__).parents[1]
MOST_WORDS = 30
"""of a sentence; code in back quotes is one, a value in a log line, too"""
FOLDERS = ("docs", "hostfiles", "hvd_nmt", "launch")
PAGES = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in ROOT.glob(f"{name}/**/*.md"))]
MODULES = [*ROOT.glob("hvd_nmt/**/*.py")]
VAGUE_NAMES = {"found", "said", "own", "each", "told"}
DIALECT = [
    re.compile(rf"(?<![\w/.-])(?:{line.partition(' = ')[0]})(?![\w/-])", re.IGNORECASE)
    for line in (ROOT / "tests/dialect.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def offences(text: str) -> list[str]:
    """Sentences of a text that are too long, and words of the dialect, each with its sentence.

    Code does not count; headings, items, cells and the options of --help end a sentence, too.
    """
    seen = []
    text = re.sub(r"^ *```.*?^ *```$|^    \S.*?$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"``.+?``|`[^`]+`", "`x`", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))
    ends = r"\n\s*\n|\n *(?=[-*#+]|\d+\. |\[\d+\] )|\||\b {2,}\b|(?<=[.!?])[)\"*_]*\s"
    for sentence in re.split(ends, text):
        said = " ".join(sentence.split())
        count = sum(bool(re.search(r"\w", word)) for word in said.split())
        seen += [f"{count} words: {said}"] if count > MOST_WORDS else []
        seen += [f"{match[0]}: {said}" for match in (one.search(said) for one in DIALECT) if match]
    return seen


def literals(path: Path) -> Iterator[str]:
    """Of a module, without docstrings (those that users read are in --help); a value is an X."""
    parts: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr):
            parts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts.update(part for value in node.values for part in ast.walk(value))
            yield "".join(
                str(value.value) if isinstance(value, ast.Constant) else "X"
                for value in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.value


def prose(path: Path) -> Iterator[str]:
    """Docstrings of a module, of attributes too, and blocks of its comments."""
    text, comments = path.read_text(encoding="utf-8"), {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            above = comments.pop((row - 1, column), "")
            comments[row, column] = f"{above} {token.string.lstrip('# ')}"
    yield from comments.values()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_document_is_plain(path):
    assert offences(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_is_plain(name, help_of):
    said = help_of(name).replace("; ", "\n\n")  # which ends what one value of an option does
    assert offences(said) == []


def test_log_lines_and_errors_are_plain():
    texts = [text for path in MODULES for text in literals(path)]
    said = [text for text in texts if len(text.split()) > 3]
    assert len(said) > 600
    assert [seen for text in said for seen in offences(text)] == []


def test_docstrings_and_comments_are_plain():
    texts = {(path.name, text) for path in MODULES for text in prose(path)}
    assert len(texts) > 2000
    assert [f"{name}: {seen}" for name, text in texts for seen in offences(text)] == []


def test_a_name_says_what_the_value_is():
    names = [
        node.id
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    assert len(names) > 5000
    assert VAGUE_NAMES.isdisjoint(names)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("word " * 31, ["31 words"]), ("A `b c`.\n\n" + "word\n" * 31, ["31 words"]),
        ("It is\nleft out.", ["left out"]), ("| a | of their own |", ["of their own"]),
        ("Do not go there without it.", ["not go there without"]),
        ("```\n" + "found " * 31 + "\n```\nA `found` file. " + "word " * 30, []),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_seen(text, words):
    assert [seen.partition(":")[0] for seen in offences(text)] == words
