"""Sizes and docstrings of the code base; style, types, import directions: make lint."""

import ast
import graphlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    path.relative_to(ROOT): ast.parse(path.read_text())
    for path in sorted((ROOT / "hvd_nmt").rglob("*.py"))
}
FUNCTIONS = {
    f"{path}:{node.lineno} {node.name}": node
    for path, module in MODULES.items()
    for node in ast.walk(module)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
}
MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 60


def test_modules_are_of_a_size_to_read():
    assert len(MODULES) > 20
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in MODULES}
    assert {path: n for path, n in lines.items() if n > MOST_LINES_OF_A_MODULE} == {}


def test_functions_are_of_a_size_to_read():
    lines = {name: _lines_without_docstring(node) for name, node in FUNCTIONS.items()}
    assert {name: n for name, n in lines.items() if n > MOST_LINES_OF_A_FUNCTION} == {}


def test_file_names_are_unique():
    names = [path.name for path in MODULES if not path.name.startswith("__")]
    assert len(set(names)) == len(names)


def test_no_modules_import_each_other_in_a_circle():
    """Imports within functions and for types alone count, too; a CycleError has the circle."""
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): module
        for path, module in MODULES.items()
    }
    graph = {name: set(_imported(module, modules)) for name, module in modules.items()}
    assert {"hvd_nmt.records.record", "hvd_nmt.config"} <= graph["hvd_nmt.records.read"]
    graphlib.TopologicalSorter(graph).prepare()


def test_class_names_are_unique():
    names = [
        node.name
        for module in MODULES.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted(set(names)) == sorted(names)


def test_no_string_names_a_module_of_another_package():
    """Such an import is seen by no linter; docstrings may."""
    foreign = [
        f"{path}: {match[0]}"
        for path, module in MODULES.items()
        for parent in ast.walk(module)
        for node in ast.iter_child_nodes(parent)
        if not isinstance(parent, ast.Expr) and isinstance(node, ast.Constant)
        for match in re.finditer(r"\bhvd_nmt\.(\w+)\.\w+", str(node.value))
        if (ROOT / "hvd_nmt" / match[1]).is_dir() and match[1] != path.parts[1]
    ]
    assert foreign == []


def test_every_public_module_class_and_function_says_what_it_is():
    silent = [
        f"{path}: {name}"
        for path, module in MODULES.items()
        for name, node in _public(module)
        if ast.get_docstring(node) is None
    ]
    assert silent == []


def _imported(module: ast.Module, names: Collection[str]) -> Iterator[str]:
    """The modules among some names that the import statements of a module name."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in names else str(node.module) for name in wanted)


def _lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def _public(module: ast.Module):
    """The module, its public classes and functions, and the public methods of those classes."""
    yield "module", module
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef) and not node.bases:
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                        yield f"{node.name}.{method.name}", method
