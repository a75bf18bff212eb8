"""House rules that a linter does not know, held against every module of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "r2d1"
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 60
BROAD = {"Exception", "BaseException"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring."""
    first = function.body[0]
    has_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    documented = first.end_lineno - first.lineno + 1 if has_docstring else 0
    return function.end_lineno - function.lineno + 1 - documented


def swallowers(tree: ast.AST) -> Iterator[int]:
    """The lines of handlers that catch everything and do nothing about it."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ExceptHandler)
            and is_broad(node.type)
            and all(does_nothing(step) for step in node.body)
        ):
            yield node.lineno


def is_broad(caught: ast.expr | None) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(name is None or (isinstance(name, ast.Name) and name.id in BROAD) for name in names)


def does_nothing(step: ast.stmt) -> bool:
    is_constant = isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
    return isinstance(step, (ast.Pass, ast.Continue)) or is_constant


def test_modules_are_of_a_size_to_be_read():
    """No module has over 400 lines."""
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_MODULE} == {}


def test_functions_are_of_a_size_to_be_read():
    """No function has over 60 lines beside its docstring."""
    lengths = {
        f"{name_of(path)}:{function.lineno} {function.name}": length_of(function)
        for path in MODULES
        for function in functions(parsed(path))
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}


def test_no_error_is_swallowed_whole():
    """Nothing catches every exception to do nothing."""
    assert [f"{name_of(path)}:{line}" for path in MODULES for line in swallowers(parsed(path))] == []


def test_every_module_says_what_it_is_for():
    """The first line of each module is a docstring."""
    without = [name_of(path) for path in MODULES if not ast.get_docstring(parsed(path))]
    assert without == []


@pytest.mark.parametrize(
    ("handler", "is_found"),
    [
        ("except Exception:\n    pass", True),
        ("except:\n    pass", True),
        ("except BaseException:\n    ...", True),
        ("except (ValueError, Exception):\n    'never mind'", True),
        ("except Exception:\n    log.exception('told')", False),
        ("except ValueError:\n    pass", False),
    ],
)
def test_the_rule_about_errors_bites(handler, is_found):
    """A swallowed error is found in each of its forms, and what is handled is not."""
    assert bool(list(swallowers(ast.parse(f"try:\n    f()\n{handler}")))) is is_found


def test_the_length_of_a_function_is_counted_without_its_docstring():
    """Explaining a function does not make it long."""
    (function,) = functions(ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'))
    assert length_of(function) == 2
