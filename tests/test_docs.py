"""The docs say what the code says."""

import importlib.util
import json
import os
import re
import shlex
import statistics
import subprocess
import sys

import pytest
import torch
from doc_blocks import (
    DOCS,
    assert_block,
    augment_fields,
    code_blocks,
    commands_in,
    recipe_fields,
    shell_lines,
    terminal_svg,
)
from shared_files import ROOT
from small_runs import picture_folder

import vitreous
from vitreous.errors import ConfigError

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "NOTES.md", *sorted(DOCS.rglob("*.md"))]
OF_EXPORTS = ("birds-onnx/run.py",)  # scripts that an export writes; tests/exports run them
REFERENCE = DOCS / "reference"
KINDS = ("pools", "positions", "sources", "formats", "recipes", "measures", "experiments", "targets", "commands")
GROUPS = {f"vitreous.{kind}" for kind in KINDS} | {"vitreous.json"}


def name_of(page) -> str:
    return page.relative_to(ROOT).as_posix()


def table(head, rows) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |\n" for row in rows]
    return "| " + " | ".join(head) + " |\n" + "|" + "---|" * len(head) + "\n" + "".join(lines)


def test_the_table_of_models():
    catalog = vitreous.models.catalog
    rows = [catalog.describe(name) for name in catalog.names()]
    sizes = ("width", "depth", "heads", "mlp", "patch")
    cells = [
        (r.name, f"{r.parameters:,}", f"{r.macs / 1e9:,.3f}", *(getattr(r, size) or "–" for size in sizes))
        for r in rows
    ]
    head = ("model", "parameters", "GMACs", "width", "depth", "heads", "mlp", "patch")
    assert_block(REFERENCE / "models.md", "models", table(head, cells))


def test_the_table_of_options():
    def words(value):
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

    rows = [
        (f"`{name}`", words(default) or "–", " ".join(values) if isinstance(values, list) else values, meaning)
        for name, (default, values, meaning) in vitreous.models.catalog.options().items()
    ]
    assert_block(REFERENCE / "models.md", "options", table(("option", "default", "values", "meaning"), rows))


def test_the_table_of_short_names():
    rows = [
        (f"`{row.name}`", f"`{row.source.partition('@')[0]}`", row.network, f"{row.megabytes:g} MB", row.pixels,
         f"{row.top1:.1f} %", row.learned_from, row.licence, "ours" if row.sha256 else "the hub's")
        for row in vitreous.weights.pretrained.PRETRAINED.values()
    ]  # fmt: skip
    head = ("name", "on the hub", "network", "file", "pixels", "top-1", "learned from", "licence", "digest")
    assert_block(DOCS / "guide" / "weights.md", "pretrained", table(head, rows))


def test_the_table_of_recipes():
    rows = [(f"`{row.name}`", row.about, row.source) for row in vitreous.training.recipes.rows()]
    assert_block(REFERENCE / "recipes.md", "recipes", table(("recipe", "what it is", "source"), rows))


def test_the_tables_of_a_recipes_fields():
    head = ("field", "default", "values", "meaning")
    assert_block(REFERENCE / "recipe-fields.md", "fields", table(head, recipe_fields()))
    assert_block(REFERENCE / "recipe-fields.md", "augment", table(head, augment_fields()))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_docs_have_options_and_fields_that_exist(page):
    """Read as the command line reads them, and not run."""
    from vitreous.cli import _application

    commands = _application().commands
    for name, *words in commands_in(page):
        given = commands[name].make_context(name, words).params
        for pair in [*(given.get("set_") or ()), *(given.get("then_set") or ())]:
            said = answer_to(dict([pair.partition("=")[::2]]))
            assert not said or f"\nvitreous: {said}\n" in page.read_text("utf-8")  # a mistake stands with its answer


def answer_to(changes) -> str:
    """What the command says to changes that a recipe refuses."""
    from vitreous.training.recipe import Recipe

    try:
        Recipe().change(**changes)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_its_language_and_every_line_of_a_shell_begins_a_program_that_is_there(page):
    openings = re.findall(r"^```(.*)$", page.read_text("utf-8"), re.MULTILINE)[::2]
    assert set(openings) <= {"python", "sh", "console", "toml", "text"}
    for line in shell_lines(page):
        program, *words = shlex.split(line, comments=True)
        match program:
            case "make":
                assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), line
            case "python":
                assert (
                    words[:2] in (["-m", "website"], ["-m", "http.server"])
                    or words[0] in OF_EXPORTS
                    or (ROOT / words[0]).exists()
                ), line
            case "curl":
                assert re.search(r"127\.0\.0\.1:8000/api/predict\b", line), line  # tests/server asks it
            case _:
                assert program in ("vitreous", "torchrun") or [program, *words][:2] == ["pip", "install"], line


def run_blocks(page, **names) -> dict:
    """All Python blocks of a page, one after the other. names: what the page takes as given."""
    for block in code_blocks(page, "python"):
        exec(compile(block, name_of(page), "exec"), names)
    return names


def test_the_python_of_the_pages_on_fit_runs(tmp_path, monkeypatch):
    """Beside a folder of images."""
    recipes = vitreous.training.recipes
    monkeypatch.setattr(recipes, "RECIPES", dict(recipes.RECIPES))
    monkeypatch.chdir(picture_folder(tmp_path / "photos", 60).parent)
    for number, page in enumerate(["start/photos.md", "guide/fit.md", "reference/recipes.md"]):
        assert run_blocks(DOCS / page)["run"].path == f"runs/photos-{[1, 5, 6][number]}"


def test_the_python_of_the_first_pages_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = vitreous.build("Ti/16", depth=2, width=16, heads=2, mlp=24, image_size=32, classes=3, seed=0)
    vitreous.save(small, "deit-tiny", format="huggingface")
    assert run_blocks(DOCS / "start" / "checkpoint.md")["logits"].shape == (1, 5)
    assert run_blocks(DOCS / "start" / "paper.md")["logits"].shape == (1, 10)


def test_the_python_of_the_page_on_notebooks_runs(tmp_path, monkeypatch):
    """Beside a folder of images and a photo; what the page says of shapes holds."""
    monkeypatch.chdir(picture_folder(tmp_path / "photos", 60).parent)
    next((tmp_path / "photos").rglob("*.png")).rename("husky.png")
    names = run_blocks(DOCS / "guide" / "notebooks.md")
    model, batch = names["model"], names["batch"]
    assert batch.shape == (3, model.config.channels, *model.config.image_size)
    assert names["logits"].shape == (3, len(model.labels))
    assert len(names["table"]) == 59


RUN_ELSEWHERE = {  # pages whose Python a test above or another file runs
    *("CONTRIBUTING.md", "docs/start/photos.md", "docs/guide/fit.md", "docs/reference/recipes.md"),
    *("docs/start/checkpoint.md", "docs/start/paper.md", "docs/guide/notebooks.md"),
}


def small_vit():
    size = {"depth": 6, "width": 16, "heads": 2, "mlp": 24, "image_size": 32, "classes": 5, "seed": 0}
    return vitreous.build("Ti/16", **size)


def given_names() -> dict:
    """What the pages take as given: a model, a set, images as tensors, and numbers of the right shapes."""
    torch.manual_seed(0)
    model, data, images = small_vit().eval(), vitreous.images.open("photos"), torch.rand(4, 3, 32, 32)
    model.labels = data.classes
    labels = torch.tensor([0, 1, 0, 1])
    features = torch.randn(40, 8)
    half = {"x": features[:30], "y": torch.arange(30) % 2, "test_x": features[30:], "test_y": torch.arange(10) % 2}
    drawn = {"seed": 0, "epoch": 0, "ids": [3, 4, 5, 6], "places": [0, 1, 2, 3], "total": 8, "labels": labels}
    batch = (images * 255).to(torch.uint8)
    tensors = {"images": images, "a": images, "b": images.flip(-1), "batch": batch}
    names = {"vitreous": vitreous, "torch": torch, "model": model, "data": data, "classes": 2}
    return names | tensors | half | drawn


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Beside folders of images and small checkpoints under the pages' names."""
    place = tmp_path_factory.mktemp("workplace")
    for name in ("photos", "holiday", "birds"):
        picture_folder(place / name, 100 if name == "photos" else 24)
    picture_folder(place / "other", 25, first=200)
    (place / "photos" / "other").mkdir()
    for file in (place / "other").rglob("*.png"):  # a fifth class
        file.rename(place / "photos" / "other" / file.name)
    vitreous.save(small_vit(), place / "deit-tiny", format="huggingface")
    vitreous.save(small_vit(), place / "deit", format="huggingface")
    vitreous.save(small_vit(), place / "ViT-B_16.npz", format="google")
    return place


@pytest.mark.parametrize(
    "page", [page for page in PAGES if code_blocks(page, "python") and name_of(page) not in RUN_ELSEWHERE], ids=name_of
)
def test_the_python_of_a_page_runs(page, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    run_blocks(page, **given_names())


def anchors(page) -> set[str]:
    """What the headings of a page are called in links."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_tables_of_web_pages():
    def span(found, unit):
        return f"{found['median']:g} ({found['from']:g} to {found['to']:g}) {unit}"

    rows = json.loads((ROOT / "benchmarks" / "results" / "web.json").read_text("utf-8"))["models"]
    answers, times = [], []
    for name, row in rows.items():
        for precision in ("float32", "fp16", "int8"):
            found = row[precision]
            same = f"{100 * found['forms']['page']['same_answer']:g} % of {found['images']}"
            sizes = (found["megabytes"][part] for part in ("model", "folder, wasm only", "folder"))
            grey = f"{found['grey_levels']:g}"
            answers.append(
                (name, precision, same, grey, *(f"{size:g}" for size in sizes), "yes" if found["passed"] else "no")
            )
        for who in ("page", "serve"):
            seen = row[who]
            visits = (span(seen["first_visit_s"], "s"), span(seen["second_visit_s"], "s"))
            times.append((name, who, *visits, span(seen["image_ms"], "ms"), span(seen["image_second_visit_ms"], "ms")))
    head = ("model", "weights", "first answer as PyTorch's", "grey levels off", "model, MB", "folder, wasm only, MB")
    whole = table((*head, "folder, MB", "kept"), answers) + "\n"
    head = (
        "model",
        "who answers",
        "opened to first answer",
        "second visit",
        "each photo",
        "at the second visit",
    )
    assert_block(DOCS / "guide" / "web.md", "web", whole + table(head, times))


def test_the_table_of_promises():
    """Both halves of a set together; they have as many draws."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "promise.json").read_text("utf-8"))["table"]

    def mean(found, *keys):
        values = []
        for row in found:
            for key in keys:
                row = row.get(key) if row else None
            values += [] if row is None else [row]
        return f"{100 * sum(values) / len(values):.1f}" if values else "–"

    def kept(found, name):
        draws = [(row["all surer ones"]["draws_with_one"], row["all surer ones"].get(name)) for row in found]
        count = sum(n for n, new in draws if new)
        right = sum(round(n * new["promise_kept"]) for n, new in draws if new)
        return f"{right} of {count}" if count else "–"

    cells = []
    for weights, kind in dict.fromkeys((row["weights"], row["set"]) for row in rows):
        found = [row for row in rows if (row["weights"], row["set"]) == (weights, kind)]
        new = [mean(found, name, what) for name in ("rest", "other half") for what in ("right", "agree")]
        trusted = [kept(found, name) for name in ("rest", "other half")]
        sure = [mean(found, "sure of strangers", name) for name in ("told", "seen")]
        cells.append((weights, kind, mean(found, "told"), *new, *trusted, *sure))
    head = ("weights", "set", "told", "rest of the half", "agree", "other half", "agree", "trusted, rest")
    head = (*head, "trusted, other", "sure of strangers, told", "seen")
    assert_block(DOCS / "guide" / "fit.md", "promise", table(head, cells))


def test_the_table_of_series():
    def share(row, name):
        return f"{100 * row[name]['accuracy']:.1f}" if name in row else "–"

    rows = json.loads((ROOT / "benchmarks" / "results" / "series.json").read_text("utf-8"))["rows"]
    ways = ("one by one", "neighbouring file numbers", "neighbouring file numbers, as many at random")
    ways = (*ways, "features much alike", "new photos")
    cells = [
        (
            row["set"],
            row["model"],
            *(share(row, way) for way in ways),
            f"{share(row, 'headline')}, {row['headline']['by']}",
        )
        for row in rows
    ]
    head = (
        "set",
        "model",
        "one by one",
        "file numbers, in tens",
        "as many at random",
        "features alike",
        "**new photos**",
    )
    assert_block(DOCS / "guide" / "fit.md", "series", table((*head, "headline"), cells))


def test_every_page_is_on_the_map():
    text = (DOCS / "README.md").read_text("utf-8")
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"README.md"}
    assert pages == {target for target in re.findall(r"\]\(([^)]+\.md)\)", text) if not target.startswith("..")}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_within_the_repository_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8")):
        if "://" not in target:
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_and_files_named_in_the_docs_exist(page):
    for named in re.findall(r"`((?:tests|benchmarks|src|docs)/[\w./-]+)`", page.read_text("utf-8")):
        assert (ROOT / named).exists(), named


def test_the_figures_of_the_readme_are_those_of_their_json():
    def found(name):
        return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))

    def mean(name):
        return f"{100 * statistics.mean(run['top1'] for run in found(name)['runs']):.1f} %"

    step = next(case for case in found("train_speed")["cases"] if case["model"] == "S/16")
    rows = [
        (
            "`fit` on 312 photos of 5 cat breeds (others 62 to 69 %), 2 CPU cores, right",
            "few_photos_plain",
            mean("few_photos_plain"),
        ),
        ("the same with `--weights deit-tiny`, right", "few_photos", mean("few_photos")),
        (
            "CIFAR-10 from scratch, plain ViT, one H200, 192 s, right",
            "cifar10",
            f"{100 * found('cifar10')['summary']['accuracy']['mean']:.1f} %",
        ),
        (
            "a whole training step of S/16 against timm's bare one, one H200",
            "train_speed",
            f"{step['ratio_10_50_90'][1]:.2f}x as fast",
        ),
        (
            "`serve` in int8 against a plain FastAPI app, 2 CPU cores",
            "serve_int8",
            f"{found('serve_int8')['int8_to_naive']['per_second']:.1f}x the requests",
        ),
    ]
    cells = [(what, figure, f"[JSON](benchmarks/results/{name}.json)") for what, name, figure in rows]
    assert_block(ROOT / "README.md", "readme", table(("what", "figure", "source"), cells))


def test_a_row_of_commands_in_the_readme_has_six_words_at_most():
    rows = re.findall(r"^\| `vitreous .*?` \| (.+) \|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert rows
    assert not [row for row in rows if len(row.split()) > 6]


def test_a_note_is_a_question_a_table_and_what_came_of_it():
    _, *notes = re.split(r"^## ", (ROOT / "NOTES.md").read_text("utf-8"), flags=re.MULTILINE)
    for note in notes:
        title = note.splitlines()[0]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d · .+\?", title)
        assert len(re.findall(r"^\|---\|", note, re.MULTILINE)) == 1, title
        assert re.search(r"\*\*(Kept|Dropped|Open)\*\*: ", note), title


def there_is(name: str) -> bool:
    """Whether a dotted name is a module or what one holds; a file called vitreous.json is neither."""
    if importlib.util.find_spec(".".join(name.split(".")[:2])) is None and name.split(".")[1] not in dir(vitreous):
        return name in GROUPS
    found = vitreous
    for depth, part in enumerate(name.split(".")[1:], 2):
        found = getattr(found, part, None) or importlib.import_module(".".join(name.split(".")[:depth]))
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_ours_in_the_docs_exist(page):
    text = page.read_text("utf-8")
    modules = re.findall(r"^from (vitreous[\w.]*) import ([\w, ]+)$", text, re.MULTILINE)
    imported = {f"{module}.{name.strip()}" for module, names in modules for name in names.split(",")}
    for name in sorted({*re.findall(r"\bvitreous(?:\.[A-Za-z_]+)+", text), *imported}):
        assert there_is(name), name


def test_every_command_is_in_the_readme():
    command = [sys.executable, "-m", "vitreous", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^│ (\w+)  +\w", told, re.MULTILINE)
    assert {"demo", "models", "convert", "doctor"} <= set(commands)
    readme = (ROOT / "README.md").read_text("utf-8")
    for command in commands:
        assert f"`vitreous {command}" in readme


def test_the_picture_of_the_terminal_is_what_the_command_prints():
    fresh, page = terminal_svg(), DOCS / "pictures" / "models.svg"
    if os.environ.get("VITREOUS_WRITE_DOCS"):
        page.write_text(fresh, "utf-8")
    assert "http" not in fresh.replace("http://www.w3.org", "")
    assert page.read_text("utf-8") == fresh
