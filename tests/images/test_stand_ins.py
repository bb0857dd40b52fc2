"""What stands in for the papers' data, and that it has the sizes that the page says."""

import re

import pytest
from shared_files import ROOT, SHARED

import vitreous

PATTERNS = {"fashion": "fashion"} | {
    name: str(SHARED / "data" / f"{name}-*.zip") for name in ("oxford-pets-160", "imagenette-128")
}


def rows() -> dict[str, tuple[int, int]]:
    text = (ROOT / "docs/guide/data.md").read_text("utf-8").partition("## What stands in")[2]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {row[2]: (_number(row[3]), _number(row[4])) for row in cells[2:]}


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text))


@pytest.mark.claim("T13")
def test_the_page_names_what_stands_in_for_each_set_of_the_papers():
    text = (ROOT / "docs/guide/data.md").read_text("utf-8").partition("## What stands in")[2]
    assert all(name in text for name in ("JFT-300M", "not public", "ImageNet-21k", "CIFAR-10, for transfer"))
    assert rows()["CIFAR-10 itself, where it is at hand"] == (50_000, 10_000)


@pytest.mark.claim("T13")
@pytest.mark.parametrize("name", PATTERNS)
def test_a_set_has_the_sizes_that_the_page_says(name):
    if name != "fashion" and not (SHARED / "data").is_dir():
        pytest.skip("the shared images are not here")
    data = vitreous.images.open(PATTERNS[name])
    assert (len(data.split("train")), len(data.split("test"))) == rows()[name]
