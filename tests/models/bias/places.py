"""Every function of vitreous.models that takes a picture's two dimensions apart, found in the source.

Passing a grid on whole is no knowledge; a function knows (row, column) when it
- has a variable, argument or attribute called row, rows, column, columns or height, or both an h and a w;
- takes a `Size` apart: an index, an unpacking, a loop over it;
- calls what works on pictures: a 2-D convolution or pool, an interpolation, a border, a mesh of coordinates, or
  anything over the axes (2, 3) of a map.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType

import vitreous.models.vit

MODELS = Path(vitreous.models.vit.__file__).parent

AXES = {"row", "rows", "column", "columns", "height"}
SIZES = {"grid", "patch", "image_size", "size", "kernel_size"}  # attributes that hold a Size wherever they occur
PICTURE_CALLS = {
    *(
        "conv2d",
        "Conv2d",
        "conv_transpose2d",
        "max_pool2d",
        "MaxPool2d",
        "avg_pool2d",
        "AvgPool2d",
        "adaptive_avg_pool2d",
    ),
    *("AdaptiveAvgPool2d", "interpolate", "upsample", "pad", "fold", "unfold", "Unfold", "meshgrid", "cartesian_prod"),
    *(
        "grid_sample",
        "affine_grid",
        "pixel_shuffle",
        "pixel_unshuffle",
        "PixelShuffle",
        "roll",
        "cdist",
        "unravel_index",
    ),
}


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}" if inside else node.name
            if isinstance(node, ast.FunctionDef):
                yield name, node
            yield from functions(node, name)


def is_size(node: ast.AST, named: set[str]) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in SIZES) or (isinstance(node, ast.Name) and node.id in named)


def knows_two_dimensions(function: ast.FunctionDef) -> bool:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    sizes = SIZES | {a.arg for a in arguments if a.annotation is not None and "Size" in ast.unparse(a.annotation)}
    nodes = list(ast.walk(function))
    words = {a.arg for a in arguments} | {n.id for n in nodes if isinstance(n, ast.Name)}
    words |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return bool(words & AXES) or {"h", "w"} <= words or any(is_apart(n, sizes) or is_of_pictures(n) for n in nodes)


def is_apart(node: ast.AST, sizes: set[str]) -> bool:
    """Whether a Size is taken apart here."""
    match node:
        case ast.Subscript() | ast.Starred():
            return is_size(node.value, sizes)
        case ast.comprehension() | ast.For():
            return is_size(node.iter, sizes)
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            return any(isinstance(t, ast.Tuple) and is_size(v, sizes) for t, v in zip(targets, values, strict=False))
        case ast.Assign(targets=[ast.Tuple()], value=value):
            return is_size(value, sizes)
    return False


def is_of_pictures(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    over = [ast.unparse(a) for a in [*node.args, *(k.value for k in node.keywords)]]
    return called in PICTURE_CALLS or bool({"(2, 3)", "(-2, -1)", "[2, 3]", "[-2, -1]"} & set(over))


def found(folder: Path = MODELS) -> set[str]:
    """`file.function` of each."""
    return {
        f"{path.stem}.{name}"
        for path in sorted(folder.glob("*.py"))
        for name, function in functions(ast.parse(path.read_text("utf-8")))
        if knows_two_dimensions(function)
    }


CUT, RESIZE, COUNT, SIZE, ELSEWHERE = (
    "cuts the picture",
    "interpolates positions",
    "counts: rows × columns, never one of them",
    "reads or prints a size; touches no pixel and no token",
    "not run by the default model",
)
RANGE = "the range of all pixels: is the image blank?"

# Every place that `found` may find, by name or as a part's functions together; the first line that fits counts.
# Another place fails the test: give it a line here, or take it away.
KNOWN = {
    "vit.patchify": CUT,
    "vit.unpatchify": CUT,
    "vit.ViT.grid_of": CUT,
    "hybrid.cut": CUT,
    "positions.resize_positions": RESIZE,
    "positions._aligned_bilinear": RESIZE,
    "positions.LearnedPositions.__init__": COUNT,
    "vit.Embedding.__init__": COUNT,
    "config.as_size": SIZE,
    "catalog.describe": SIZE,
    "cost.*": SIZE,
    "preprocess.Preprocess.__str__": SIZE,
    "architecture.*": SIZE,
    "familiarity.from_json": SIZE,
    "familiarity.Familiarity.forward": RANGE,
    "positions.Learned2dPositions.*": ELSEWHERE,
    "positions.sincos_2d": ELSEWHERE,
    "positions.RelativePositions.*": ELSEWHERE,
    "rotary.Rotation.places": ELSEWHERE,
    "attention_bias.*": ELSEWHERE,
    "hybrid.*": ELSEWHERE,
    "convolutions.*": ELSEWHERE,
    "bit.*": ELSEWHERE,
}


def line_of(place: str) -> str | None:
    """The line of KNOWN that a place falls under."""
    return next((line for line in KNOWN if fnmatchcase(place, line)), None)


def run_by(work: Callable[[], object], folder: Path = MODELS) -> set[str]:
    """`file.function` of every function of vitreous.models that runs while `work` does."""
    ran = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == folder:
            ran.add(f"{path.stem}.{frame.f_code.co_qualname.partition('.<locals>')[0]}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return ran
