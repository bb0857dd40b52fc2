"""Our docstrings as Markdown: `name: meaning` becomes a list, and a star stays a star."""

import re

CODE_OR_MARK = re.compile(r"(`[^`]*`)|([*<])")


def as_markdown(text: str, names: list[str]) -> str:
    """names: of parameters or fields, which the text explains as `name: meaning`; an indented paragraph is code."""
    paragraphs = [each for each in re.split(r"\n\s*\n", text) if each.strip()]
    return "\n\n".join(each if each.startswith("    ") else _paragraph(each, names) for each in paragraphs)


def _paragraph(text: str, names: list[str]) -> str:
    plain = CODE_OR_MARK.sub(lambda found: found[1] or f"\\{found[2]}", text)
    if not names:
        return plain
    one = rf"(?:{'|'.join(map(re.escape, names))}|Returns)"
    parts = re.split(rf"(?:^|(?<=[.;])\s+|\n)({one}(?:, {one})*): ?", plain)
    before, pairs = parts[0], zip(parts[1::2], parts[2::2], strict=True)
    rows = [f"- **`{name}`**: {' '.join(meaning.split())}" for name, meaning in pairs]
    return "\n\n".join(filter(None, [before.strip(), "\n".join(rows)]))
