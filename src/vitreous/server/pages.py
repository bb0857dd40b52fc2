"""The page, the lesson and the docs, all from files of the package."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response

from vitreous.report.page import TEMPLATES, Block, Code, Page, Section, Table, Text, render

PAGE_FOLDER = Path(__file__).parent / "page"
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE_FILES = {  # address -> file; the server gives no other file
    "/": PAGE_FOLDER / "index.html",
    "/lesson": PAGE_FOLDER / "lesson.html",
    "/worksheet": PAGE_FOLDER / "worksheet.html",
    "/house.css": TEMPLATES / "page.css",
    "/icon.svg": PAGE_FOLDER / "icon.svg",
    **{f"/{file.name}": file for file in sorted(PAGE_FOLDER.iterdir()) if file.suffix in (".js", ".css")},
}


def add(app: FastAPI) -> None:
    for address, file in PAGE_FILES.items():
        app.add_api_route(address, _giving(file), include_in_schema=False)
    app.add_api_route("/docs", _docs(app), include_in_schema=False)


def _giving(file: Path) -> Any:
    body = file.read_bytes()
    kind = f"{CONTENT_TYPES[file.suffix]}; charset=utf-8"

    async def give() -> Response:
        return Response(body, media_type=kind, headers={"cache-control": "no-cache"})

    return give


def _docs(app: FastAPI) -> Any:
    html = docs(app.openapi())
    styles = [hashlib.sha256(text.encode()).digest() for text in re.findall(r"<style>(.*?)</style>", html, re.DOTALL)]
    allowed = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in styles)
    policy = f"default-src 'none'; style-src {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

    async def give() -> Response:
        return Response(html, media_type="text/html", headers={"content-security-policy": policy})

    return give


def docs(schema: dict[str, Any]) -> str:
    """The OpenAPI schema as a page."""
    sections = [
        Section(path, _operation(path, operation), badge=method.upper())
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    page = Page(
        title="The API",
        over="vitreous serve",
        answer=schema["info"]["summary"],
        lead='Every refusal is {"error": one line} with a status of 400 or more; a 503 says in Retry-After when to '
        "try again. If the server has a token, send it as Authorization: Bearer TOKEN.",
        sections=sections,
        foot="For programs: /openapi.json",
    )
    return render(page)


def _operation(path: str, operation: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = [Text(operation["summary"] + ".")]
    if about := operation.get("description"):
        blocks += [Text(" ".join(part.replace("`", "").split())) for part in about.split("\n\n")]
    rows = [
        [each["name"], _type(each["schema"]), each.get("description", each["schema"].get("description", ""))]
        for each in operation.get("parameters", [])
    ]
    if rows:
        blocks.append(Table(["name", "type", "meaning"], rows, caption="Query parameters."))
    if body := operation.get("requestBody"):
        blocks.append(Text(body["description"]))
        blocks.append(Code(f"curl -F images=@photo.jpg http://127.0.0.1:8000{path}"))
    else:
        blocks.append(Code(f"curl http://127.0.0.1:8000{path}"))
    return blocks


def _type(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"{_type(schema['items'])}, repeated"
    kinds = [_type(each) for each in schema.get("anyOf", [])] or [str(schema.get("type", ""))]
    bounds = [
        f"{word} {schema[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    ]
    default = [f"default {json.dumps(schema['default'])}"] if schema.get("default") is not None else []
    return ", ".join([*(kind for kind in kinds if kind not in ("", "null")), *bounds, *default])
