"""The site: every page is in its navigation, made pages follow the code, and a fault in a built site is found."""

import pkgutil
import re
import tomllib

import pytest
from doc_blocks import DOCS, code_blocks
from shared_files import ROOT

import vitreous
from vitreous.cli import COMMANDS, _application
from website import check_site, live, navigation, reference, sources
from website.docstrings import as_markdown


def places(nav) -> list[str]:
    """Every page of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [place for part in (nav.values() if isinstance(nav, dict) else nav) for place in places(part)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The site's sources, but for what must be computed."""
    out = tmp_path_factory.mktemp("site") / "pages"
    sources.copy_pages(out)
    reference.write_commands(out)
    reference.write_python(out)
    return out


def test_every_page_is_in_the_navigation_once(pages, tmp_path):
    config = tomllib.loads(navigation.config(pages, tmp_path / "site", tmp_path))["project"]
    named = places(config["nav"])
    assert len(named) == len(set(named))
    made = {page.relative_to(pages).as_posix() for page in pages.rglob("*.md")}
    books = {f"notebooks/{book.stem}.md" for book in (DOCS / "notebooks").glob("*.ipynb")}
    computed = {"gallery/index.md", "live/index.md"}
    assert {place for place in made if not place.startswith("repository/")} | books | computed == set(named)


def test_the_site_takes_nothing_from_elsewhere(pages, tmp_path):
    theme = tomllib.loads((ROOT / "website" / "zensical.toml").read_text("utf-8"))["project"]["theme"]
    assert theme["font"] is False
    assert "//" not in re.sub(r"/\*.*?\*/", "", (ROOT / "website" / "style.css").read_text("utf-8"), flags=re.DOTALL)


def test_links_that_leave_the_docs_lead_to_copies(pages):
    text = (pages / "evidence" / "measured.md").read_text("utf-8")
    assert "](../repository/benchmarks/results/cifar10.json)" in text
    assert (pages / "repository" / "benchmarks" / "results" / "cifar10.json").exists()
    assert "](../project/notes.md" in text
    assert "<!-- measured" not in text
    for page in pages.rglob("*.md"):
        for _, target, _ in sources.LINK.findall(sources.FENCE.sub("", page.read_text("utf-8"))):
            is_computed = re.search(r"(^|/)(gallery/figures|notebooks)/", target)
            if target and "://" not in target and not is_computed:
                assert (page.parent / target).exists(), f"{page.relative_to(pages)}: {target}"


def test_a_page_and_a_file_of_the_same_name_are_both_there(pages):
    twins = [page for page in DOCS.rglob("*.html") if page.with_suffix(".md").exists()]
    for twin in twins:
        there = pages / twin.relative_to(DOCS)
        assert not there.exists()
        assert there.with_stem(f"{twin.stem}-page").read_bytes() == twin.read_bytes()


def test_a_link_in_code_is_code(tmp_path):
    text = "```python\nx[0](a.md)\n```\n[b](../NOTES.md#x)\n"
    turned = sources.rewritten(text, DOCS / "README.md", tmp_path)
    assert turned == "```python\nx[0](a.md)\n```\n[b](project/notes.md#x)\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_page_has_every_option_of_its_help(pages, name):
    text = (pages / "reference" / "commands" / f"{name}.md").read_text("utf-8")
    command = _application().commands[name]
    for each in command.params:
        if each.param_type_name == "option" and not each.hidden and each.name != "help":
            assert f"`{each.opts[0]}`" in text, each.name
    (example, _) = [*code_blocks(pages / "reference" / "commands" / f"{name}.md", "sh"), ""]
    assert example.split()[:2] == ["vitreous", name]
    command.make_context(name, example.split()[2:])


def test_the_pages_on_python_name_what_there_is(pages):
    named = [name for page in (pages / "reference" / "python").glob("*.md")
             for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]  # fmt: skip
    assert {f"vitreous.{name}" for name in vitreous.HOME} <= set(named)
    for name in named:
        assert pkgutil.resolve_name(name).__doc__, name


def test_a_docstring_becomes_a_list():
    text = "How far.\n\n    a*b*c\n\nweights: B H N N of `x*`.  patch: pixels,\nor *any*. other: stays. Returns: B H."
    assert as_markdown(text, ["weights", "patch"]) == (
        "How far.\n\n    a*b*c\n\n"
        "- **`weights`**: B H N N of `x*`.\n- **`patch`**: pixels, or \\*any\\*. other: stays.\n- **`Returns`**: B H."
    )


def test_commands_of_computed_pages_are_understood():
    """They are run when the site is built; here they are read as the command line reads them."""
    commands = _application().commands
    measures = [f"{live.LOOK} --only {name}" for name in vitreous.measures.MEASURES]
    for line in [live.FIT, live.LOOK, live.DEMO, live.DRAW, *measures, *map(live.page_command, live.PAGES)]:
        _, name, *words = live.shlex.split(line)
        commands[name].make_context(name, words)
    assert {page.stem for page in (DOCS / "gallery").glob("*.html")} == set(live.PAGES)
    assert live.SCENES.split()[1] == "benchmarks/scenes.py"


# ------------------------------------------------------------------------------------------------------------ the check


def site(folder, **pages):
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>", "utf-8")
    return check_site.faults(folder.resolve())


def test_a_whole_site_has_no_fault(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text('<h2 id="x">x</h2><a href="../one.html#here">up</a>')
    (tmp_path / "style.css").write_text("a { background: url(data:image/png;base64,AAAA) }")
    links = '<p id="here"></p><a href="sub/#x">a</a><a href="sub/">b</a><a href="https://example.org">c</a>'
    body = links + '<link rel="stylesheet" href="style.css">'
    assert site(tmp_path, one=body) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('<a href="gone.html">a</a>', "gone.html is not there"),
        ('<img src="gone.png">', "gone.png is not there"),
        ('<a href="one.html#nowhere">a</a>', "one.html#nowhere has no such anchor"),
        ('<a href="#nowhere">a</a>', "#nowhere has no such anchor"),
        ('<a href="../../etc/passwd">a</a>', "is not there"),
        ('<script src="https://cdn.example.org/x.js"></script>', "from another host"),
        ('<img src="//example.org/x.png">', "from another host"),
        ('<link rel="preconnect" href="https://fonts.example.org">', "from another host"),
        ("<style>@import 'https://example.org/x.css'</style>", "from another host"),
        ('<template><img src="gone.png"></template>', "gone.png is not there"),
    ],
)
def test_a_fault_is_named(tmp_path, body, words):
    (line,) = site(tmp_path, one=body)
    assert line.startswith("one.html: ")
    assert words in line


def test_the_page_of_an_exported_model_is_judged_by_its_own_tests(tmp_path):
    assert site(tmp_path, one='<a href="worksheet">a</a>')
    (tmp_path / "parity.json").write_text("{}")
    assert site(tmp_path, one='<a href="worksheet">a</a>') == []


def test_a_style_sheet_that_loads_from_elsewhere_is_a_fault(tmp_path):
    (tmp_path / "x.css").write_text("@font-face { src: url('https://fonts.example.org/a.woff2') }")
    assert site(tmp_path, one="") == ["x.css: a style loads from another host"]
