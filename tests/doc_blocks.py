"""Parts of the docs that are made, not written: each stands between two markers and is compared with a fresh one.

To write them anew: VITREOUS_WRITE_DOCS=1 pytest -n0 tests/test_docs.py tests/models/bias/test_page.py
"""

import os
from pathlib import Path

from shared_files import ROOT

DOCS = ROOT / "docs"


def split_at(text: str, section: str) -> tuple[str, str, str]:
    """What stands before, in and after a made section."""
    begin, end = f"<!-- measured: {section} -->\n", f"<!-- end: {section} -->"
    before, rest = text.split(begin)
    inside, after = rest.split(end)
    return before + begin, inside, end + after


def assert_block(page: Path, section: str, fresh: str) -> None:
    before, inside, after = split_at(page.read_text("utf-8"), section)
    if os.environ.get("VITREOUS_WRITE_DOCS"):
        page.write_text(before + fresh + after, "utf-8")
        inside = fresh
    assert inside == fresh, f"{page.name} is out of date; tests/doc_blocks.py says how to write it anew"


def terminal_svg() -> str:
    """What `vitreous models` prints, as a picture that fetches nothing."""
    import io
    import re

    from rich.console import Console
    from rich.terminal_theme import DIMMED_MONOKAI

    from vitreous.cli.models import models_table
    from vitreous.models import catalog

    console = Console(width=80, record=True, file=io.StringIO(), highlight=False)
    console.print("$ vitreous models", style="bold")
    console.print(models_table([catalog.describe(name) for name in catalog.names()]))
    svg = console.export_svg(title="", theme=DIMMED_MONOKAI, unique_id="models")
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)  # they point to a network
    return svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
