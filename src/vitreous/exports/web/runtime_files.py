"""Where onnxruntime-web comes from: `node_modules`, a folder that is named, or npm if the user says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import ConfigError
from vitreous.files import atomic_folder, cache_folder

PACKAGE = "onnxruntime-web"
FETCHED_VERSION = "1.30.0"  # that `--runtime npm` fetches; others work if they have the files below
FETCH = "npm"  # as --runtime
NPM_SECONDS = 600
MAX_UNPACKED = 400_000_000  # bytes; the package has 140 million
# Ours -> the package's. Our names end in .js: many hosts do not know .mjs.
WASM_FILES = {
    "script": ("ort.js", "ort.wasm.min.mjs"),
    "glue": ("ort-wasm.js", "ort-wasm-simd-threaded.mjs"),
    "wasm": ("ort-wasm.wasm", "ort-wasm-simd-threaded.wasm"),
}
WEBGPU_FILES = {
    "script": ("ort-webgpu.js", "ort.webgpu.min.mjs"),
    "glue": ("ort-wasm-webgpu.js", "ort-wasm-simd-threaded.asyncify.mjs"),
    "wasm": ("ort-wasm-webgpu.wasm", "ort-wasm-simd-threaded.asyncify.wasm"),
}


@dataclass(frozen=True)
class RuntimeFiles:
    """The package's folder `dist`.  origin: in words, without folders of this machine."""

    dist: Path
    version: str
    origin: str

    @property
    def has_webgpu(self) -> bool:
        return _has(self.dist, WEBGPU_FILES)

    def copy(self, folder: Path, *, webgpu: bool) -> dict[str, Any]:
        """Copy what the page loads into `folder`/runtime; returns what the page must know about it."""
        about: dict[str, Any] = {"name": PACKAGE, "version": self.version, "origin": self.origin, "webgpu": None}
        (folder / "runtime").mkdir()
        for kind, files in (("wasm", WASM_FILES), *((("webgpu", WEBGPU_FILES),) if webgpu else ())):
            for name, theirs in files.values():
                shutil.copyfile(self.dist / theirs, folder / "runtime" / name)
            about[kind] = {part: f"runtime/{name}" for part, (name, _) in files.items()}
        return about


def find_runtime(given: str | os.PathLike[str] | None, start: Path | None = None) -> RuntimeFiles:
    """The runtime that was named, the nearest one, or npm's.  start: where to look upwards for `node_modules`."""
    if why := missing_runtime(given, start):
        raise ConfigError(why)
    return _found(given, start) or _fetch()


def missing_runtime(given: str | os.PathLike[str] | None, start: Path | None = None) -> str:
    """Why there is no runtime, and how to get one; empty if it is here, or npm is here to fetch it."""
    if _found(given, start):
        return ""
    if given is None:
        get = "" if shutil.which("npm") else "install Node.js for npm, which is not here, and "
        return (
            f"a web page needs {PACKAGE}, which is not here; {get}run npm install {PACKAGE}, or let npm fetch it with "
            f"--runtime npm; or name its folder with --runtime FOLDER"
        )
    if os.fspath(given) != FETCH:
        wanted = WASM_FILES["wasm"][1]
        return f"{given} has no {PACKAGE} ({wanted}); name its folder, or let npm fetch it with --runtime npm"
    if shutil.which("npm"):
        return ""
    return (
        f"--runtime npm needs npm, which is not here; install Node.js, or bring {PACKAGE} and name it: --runtime FOLDER"
    )


def _found(given: str | os.PathLike[str] | None, start: Path | None) -> RuntimeFiles | None:
    if given is not None and os.fspath(given) != FETCH:
        return _named(Path(given).expanduser())
    if given is None:
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if found := _package(folder / "node_modules" / PACKAGE, "node_modules"):
                return found
    return _package(_cached(), "npm")


def _named(folder: Path) -> RuntimeFiles | None:
    for place in (folder, folder / "node_modules" / PACKAGE, folder / PACKAGE, folder.parent):
        if found := _package(place, "a folder that was named"):
            return found
    if _has(folder, WASM_FILES):
        return RuntimeFiles(folder, "of unknown version", "a folder that was named")
    return None


def _package(folder: Path, origin: str) -> RuntimeFiles | None:
    try:
        about = json.loads((folder / "package.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(about, dict) or about.get("name") != PACKAGE or not _has(folder / "dist", WASM_FILES):
        return None
    return RuntimeFiles(folder / "dist", str(about.get("version", "of unknown version")), origin)


def _has(dist: Path, files: dict[str, tuple[str, str]]) -> bool:
    return all((dist / theirs).is_file() for _, theirs in files.values())


def _cached() -> Path:
    return cache_folder() / f"{PACKAGE}-{FETCHED_VERSION}"


def _fetch() -> RuntimeFiles:
    """`npm pack`, unpacked into the cache; npm checks the file against the registry's digest."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", f"{PACKAGE}@{FETCHED_VERSION}", "--pack-destination", scratch, "--ignore-scripts"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, timeout=NPM_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _unfetched(type(error).__name__) from None
        packed = next(Path(scratch).glob("*.tgz"), None)
        if done.returncode or packed is None:
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            raise _unfetched(lines[0] if lines else f"exit {done.returncode}")
        _cached().parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(_cached(), force=True) as folder:
            _unpack(packed, folder)
    found = _package(_cached(), "npm")
    if found is None:
        raise _unfetched("the package has other files than expected")
    return found


def _unpack(packed: Path, folder: Path) -> None:
    """package.json and the files of `dist` that a page may load; nothing else of the archive is written."""
    wanted = {f"package/dist/{theirs}" for _, theirs in (*WASM_FILES.values(), *WEBGPU_FILES.values())}
    wanted.add("package/package.json")
    (folder / "dist").mkdir()
    with tarfile.open(packed, "r:gz") as archive:
        for member in archive:
            if member.name not in wanted or not member.isfile() or member.size > MAX_UNPACKED:
                continue
            source = archive.extractfile(member)
            assert source is not None
            with source, (folder / member.name.removeprefix("package/")).open("wb") as out:
                shutil.copyfileobj(source, out)


def _unfetched(why: str) -> ConfigError:
    line = " ".join(why.split())[:160]
    return ConfigError(f"npm could not fetch {PACKAGE} ({line}); try again, or bring it and name it: --runtime FOLDER")
