"""A hub on this machine: as much of the Hugging Face API as fetching and pushing a folder of weights needs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """files: what each repository holds.  sent: what comes in place of a file, as "owner/name/file".  seen: every
    request, as METHOD PATH."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[str, dict[str, bytes]] = {}
        self.sent: dict[str, bytes] = {}
        self.seen: list[str] = []
        self.made: list[str] = []
        self.closed: set[str] = set()  # names to whose requests the answer is 403

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        """Silence."""

    def say(self, status: int, body: bytes | dict | list, **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def handle_one(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.seen.append(f"{self.command} {path}")
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if any(name in path or name.encode() in sent for name in self.server.closed):
            return self.say(403, {"error": "No.\nNot today."})
        words = path.strip("/").split("/")
        if path == "/api/repos/create":
            said = json.loads(sent)
            name = f"{said.get('organization') or 'me'}/{said['name']}"
            self.server.made.append(name)
            self.server.files.setdefault(name, {})
            return self.say(200, {"url": f"{self.server.address}/{name}", "id": name, "name": name})
        if words[:2] == ["api", "models"]:
            return self.models("/".join(words[2:4]), words[4:], sent)
        if len(words) > 4 and words[2] == "resolve":
            return self.file("/".join(words[:2]), commit_of(words[3]), "/".join(words[4:]))
        return self.say(200, {"name": "me", "type": "user", "auth": {}})

    do_GET = do_POST = do_HEAD = handle_one

    def models(self, name: str, words: list[str], sent: bytes) -> None:
        files = self.server.files.get(name)
        if files is None:
            return self.say(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        match words[:1]:
            case ["preupload"]:
                asked = json.loads(sent)["files"]
                modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
                return self.say(200, {"files": modes})
            case ["commit"]:
                for line in sent.decode().splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                where = f"{self.server.address}/{name}/commit/{COMMIT}"
                return self.say(200, {"success": True, "commitOid": COMMIT, "commitUrl": where, "hookOutput": ""})
            case ["tree"]:
                return self.say(200, [listed(path, raw) for path, raw in files.items()])
        commit = commit_of(words[1]) if words[:1] == ["revision"] else COMMIT
        info = {"id": name, "sha": commit, "siblings": [{"rfilename": p} for p in files], "private": False, "tags": []}
        return self.say(200, info)

    def file(self, name: str, commit: str, path: str) -> None:
        files = self.server.files.get(name, {})
        if path not in files:
            return self.say(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        raw = files[path]
        stated = {"X_Linked_Etag": f'"{sha256(raw)}"'} if is_large(path) else {"ETag": f'"{git_name(raw)}"'}
        stated |= {"X_Linked_Size": str(len(raw)), "X_Repo_Commit": commit}
        return self.say(200, self.server.sent.get(f"{name}/{path}", raw), **stated)


def commit_of(revision: str) -> str:
    """A commit names itself; every branch stands at one."""
    return revision if re.fullmatch("[0-9a-f]{40}", revision) else COMMIT


def is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin", ".npz"))


def listed(path: str, raw: bytes) -> dict:
    """A file as the hub lists it: a large one has a SHA-256, any other the name that git gives it."""
    entry = {"type": "file", "path": path, "size": len(raw), "oid": git_name(raw)}
    large = {"oid": sha256(raw), "size": len(raw), "pointerSize": 134}
    return entry | ({"lfs": large} if is_large(path) else {})


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def git_name(raw: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()


@contextmanager
def running():
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
