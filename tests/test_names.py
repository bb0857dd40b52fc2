"""A name means one thing: no class is defined twice, and a constant has one value wherever its name appears."""

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest
from shared_files import ROOT

SOURCE = ROOT / "src" / "vitreous"
SAME_CLASS_ROLE = {"Root", "Unit"}  # the ResNet parts of BiT and of the hybrid stem, each as its own paper draws them
SAME_CONSTANT_ROLE = {
    "EXAMPLE",
    "EXPERIMENT",
    "SEEDS",
    "SETTINGS",
}  # each command's example; each experiment and its scales


@pytest.fixture(scope="module")
def trees():
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, source of its value) of every upper-case name that a module assigns at its top level."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            yield from paired(target, node.value)


def paired(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, str]]:
    """`A, B = 1, 2` assigns 1 to A and 2 to B; `A, B = range(2)` assigns a part of the range to each."""
    if isinstance(target, ast.Name) and target.id.isupper():
        yield target.id, ast.unparse(value) if value else ""
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
        for name, part in zip(target.elts, values, strict=True):
            yield from paired(name, part)


def test_no_class_name_is_defined_twice(trees):
    defined = defaultdict(list)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{file}:{node.lineno}")
    twice = {name: places for name, places in defined.items() if len(places) > 1 and name not in SAME_CLASS_ROLE}
    assert not twice, twice


def test_a_constant_in_more_than_two_modules_has_one_value(trees):
    defined = defaultdict(dict)
    for file, tree in trees.items():
        for name, value in constants(tree):
            defined[name][file] = value
    many = {name: files for name, files in defined.items() if len(files) > 2 and len(set(files.values())) > 1}
    assert not set(many) - SAME_CONSTANT_ROLE, many


def test_a_constant_is_found_however_it_is_assigned():
    tree = ast.parse("ONE: int = 1\nTWO, THREE = 2, 3\nFOUR, FIVE = range(2)\nlower = 6\ndef f():\n    SIX = 6\n")
    assert dict(constants(tree)) == {"ONE": "1", "TWO": "2", "THREE": "3", "FOUR": "range(2)", "FIVE": "range(2)"}
