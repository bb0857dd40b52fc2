"""The page, the lesson and the docs, all from files of the package; `vitreous export --to web` writes the same page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from vitreous.report.page import ANSWER_PAGE, TEMPLATES, Block, Code, Page, Section, Table, Text, render
from vitreous.server.guard import PERMISSIONS

PAGE_FOLDER = Path(__file__).parent / "page"
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
OTHER_PAGES = ("lesson", "lesson.html", "worksheet", "worksheet.html")  # as people type them, and as pages link
PAGE_FILES = {  # address -> file; the server gives no other file
    "/": ANSWER_PAGE / "index.html",
    **{f"/{name}": ANSWER_PAGE / f"{name.removesuffix('.html')}.html" for name in OTHER_PAGES},
    "/house.css": TEMPLATES / "page.css",
    **{
        f"/{file.name}": file
        for folder in (ANSWER_PAGE, PAGE_FOLDER)
        for file in sorted(folder.iterdir())
        if file.suffix in (".js", ".css", ".svg")
    },
}
CAMERA_PAGE = "/"  # the only one that may ask for the camera
OWN_ADDRESS = "http://127.0.0.1:8000"  # in the docs, unless they are read under another address
HOST = re.compile(r"[\w.-]+(:\d+)?|\[[\da-fA-F:.]+\](:\d+)?", re.ASCII)


def add(app: FastAPI, *, has_token: bool) -> None:
    for address, file in PAGE_FILES.items():
        app.add_api_route(address, _giving(file, may_film=address == CAMERA_PAGE), include_in_schema=False)
    app.add_api_route("/docs", _docs(app, has_token), include_in_schema=False)


def _giving(file: Path, *, may_film: bool) -> Any:
    body = file.read_bytes()
    kind = f"{CONTENT_TYPES[file.suffix]}; charset=utf-8"
    headers = {"cache-control": "no-cache"}
    if may_film:
        headers["permissions-policy"] = PERMISSIONS.replace("camera=()", "camera=(self)")

    async def give() -> Response:
        return Response(body, media_type=kind, headers=headers)

    return give


def _docs(app: FastAPI, has_token: bool) -> Any:
    html = docs(app.openapi(), has_token=has_token)
    styles = [hashlib.sha256(text.encode()).digest() for text in re.findall(r"<style>(.*?)</style>", html, re.DOTALL)]
    allowed = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in styles)
    policy = f"default-src 'none'; style-src {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

    async def give(request: Request) -> Response:
        host = request.headers.get("host", "")
        here = f"{request.url.scheme}://{host}" if HOST.fullmatch(host) else OWN_ADDRESS
        return Response(
            html.replace(OWN_ADDRESS, here), media_type="text/html", headers={"content-security-policy": policy}
        )

    return give


def docs(schema: dict[str, Any], *, has_token: bool) -> str:
    """The OpenAPI schema as a page."""
    sections = [
        Section(path, _operation(path, operation, has_token), badge=method.upper())
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


def _operation(path: str, operation: dict[str, Any], has_token: bool) -> list[Block]:
    blocks: list[Block] = [Text(operation["summary"] + ".")]
    if about := operation.get("description"):
        blocks += [Text(" ".join(part.replace("`", "").split())) for part in about.split("\n\n")]
    rows = [
        [each["name"], _type(each["schema"]), each.get("description", each["schema"].get("description", ""))]
        for each in operation.get("parameters", [])
    ]
    if rows:
        blocks.append(Table(["name", "type", "meaning"], rows, caption="Query parameters."))
    words = ["curl"]
    if has_token and path != "/healthz":
        words.append("-H 'Authorization: Bearer TOKEN'")
    if body := operation.get("requestBody"):
        blocks.append(Text(body["description"]))
        words.append("-F images=@photo.jpg")
    needed = "&".join(f"{each['name']}=ID" for each in operation.get("parameters", []) if each["required"])
    return [*blocks, Code(" ".join([*words, f"{OWN_ADDRESS}{path}{'?' if needed else ''}{needed}"]))]


def _type(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"{_type(schema['items'])}, repeated"
    kinds = [_type(each) for each in schema.get("anyOf", [])] or [str(schema.get("type", ""))]
    bounds = [
        f"{word} {schema[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    ]
    default = [f"default {json.dumps(schema['default'])}"] if schema.get("default") is not None else []
    return ", ".join([*(kind for kind in kinds if kind not in ("", "null")), *bounds, *default])
