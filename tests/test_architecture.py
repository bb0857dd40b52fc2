"""The house: rooms import only leftwards, importing is light, and public names are what they say."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from shared_files import ROOT

import vitreous
from vitreous.cli import COMMANDS

HOUSE = ["errors", "options", "printable", "words", "files", "journal", "registry", "machine", "randomness", "ranks"]
HOUSE += ["report", "models", "weights", "images", "evaluation", "measures", "training", "papers", "exports", "server"]
HOUSE += ["cli", "__main__"]
SOURCE = ROOT / "src" / "vitreous"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(SOURCE)], "vitreous."))
VAGUE = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import, also inside functions and of relative ones."""
    package = ["vitreous", *file.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield node.lineno, ".".join([*above, *(node.module or "").split(".")]).strip(".")


def our_imports() -> Iterator[tuple[str, str, list[str]]]:
    """(place, room, what it imports of ours as a path) for every import of ours outside the root file."""
    for file in FILES:
        if file != SOURCE / "__init__.py":
            for line, module in imports(file):
                if module.split(".")[0] == "vitreous":
                    yield f"{file.relative_to(ROOT)}:{line}", room_of(file), module.split(".")[1:]


def test_every_room_has_a_place_in_the_house():
    rooms = {room_of(file) for file in FILES} - {"__init__"}
    assert rooms <= set(HOUSE), f"{rooms - set(HOUSE)}: give it a place in HOUSE"


def test_a_room_imports_only_rooms_to_its_left():
    wrong = [
        f"{place}: {room} imports {path[0]}, which stands to its right"
        for place, room, path in our_imports()
        if path and HOUSE.index(path[0]) > HOUSE.index(room)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_imports_the_root():
    wrong = [place for place, room, path in our_imports() if not path and room != "cli"]
    assert not wrong, f"{wrong}: import the module itself"


def test_relative_imports_are_resolved_by_this_test(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    file = tmp_path / "models" / "parts" / "one.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from . import two\nfrom ..vit import ViT\nfrom ...weights import hub\ndef f():\n    import vitreous.cli"
    )
    assert sorted(imports(file)) == [
        (1, "vitreous.models.parts"),
        (2, "vitreous.models.vit"),
        (3, "vitreous.weights"),
        (5, "vitreous.cli"),
    ]


def test_no_file_is_named_for_its_kind():
    assert not {file.stem for file in [*FILES, *(ROOT / "tests").rglob("*.py")]} & VAGUE


@pytest.mark.parametrize(
    "code",
    [
        "import vitreous; dir(vitreous); vitreous.__version__",
        "import vitreous.cli",
        *(f"main({words})" for words in [["--help"], ["--version"], ["no-such-word"]]),
        *(f"main([{command!r}, '--help'])" for command in COMMANDS),
    ],
)
def test_importing_and_helping_leave_torch_out(code):
    """Torch takes over a second; a word of help should not."""
    program = f"""
import sys, contextlib
if {code.startswith("main")}:
    from vitreous.cli import main
with contextlib.suppress(SystemExit):
    {code}
heavy = {{"torch", "numpy", "PIL", "safetensors"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_training_on_a_cpu_leaves_the_compiler_out():
    """torch._dynamo takes as long to import as torch itself, and sympy half a second: both are for compiled steps."""
    program = """
import sys
import numpy as np, torch, vitreous
from vitreous.evaluation import logistic
from vitreous.models.catalog import parse
from vitreous.models.cost import macs
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import MAKERS, make

assert macs(parse("Ti/16")) and macs(vitreous.load("starter").config)
model = vitreous.build("Ti/16", image_size=32, width=12, heads=2, depth=1, seed=0)
for name in MAKERS:
    optimizer = make(model, Recipe(optimizer=name), torch.device("cpu"))
    with vitreous.taps(model, ["blocks.0.attention.weights"]):
        model(torch.ones(1, 3, 32, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
logistic.fit(np.eye(3), np.arange(3), 3, l2=0.1)
heavy = {"torch._dynamo", "sympy", "torch.onnx"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_public_names_agree_with_all(name):
    """Where a module has __all__, it lists exactly the public functions and classes that the module defines."""
    module = importlib.import_module(name)
    if not hasattr(module, "__all__"):
        return
    tree = ast.parse(Path(module.__file__).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    defined = {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)
    assert defined <= set(module.__all__)


@pytest.mark.parametrize("name", vitreous.__all__)
def test_the_root_hands_out_every_public_name(name):
    assert getattr(vitreous, name) is not None
    assert name in dir(vitreous)


def test_the_root_tells_type_checkers_the_same_names():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    told = {
        name.asname: node.module.removeprefix("vitreous").lstrip(".")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("vitreous")
        for name in node.names
    }
    assert told == vitreous.HOME | dict.fromkeys(vitreous.ROOMS, "")


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(AttributeError, match=r"vitreous has no 'train'; it has: build, load"):
        vitreous.train  # noqa: B018


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert metadata.version("vitreous") == vitreous.__version__
    assert f"\nversion: {vitreous.__version__}\n" in citation
    assert f"\n## {vitreous.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_torchvision_is_never_asked_for():
    """It does not import beside a CPU torch and breaks what finds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    assert not [need for need in needs if need.startswith(("torchvision", "timm"))]
    assert not [file for file in FILES if any(module.split(".")[0] == "torchvision" for _, module in imports(file))]
