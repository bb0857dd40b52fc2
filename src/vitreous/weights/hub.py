"""The Hugging Face hub: `hf:OWNER/NAME`, `timm:NAME` and short names. Nothing else here uses a network."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vitreous.errors import HubError, MissingExtraError
from vitreous.files import digest, remove
from vitreous.words import one_line

SCHEMES = ("hf:", "timm:")
CONFIG_PATTERNS = ["*.json"]
SAFE_WEIGHT_PATTERNS = ["model*.safetensors", "*.npz"]
ALL_WEIGHT_PATTERNS = [*SAFE_WEIGHT_PATTERNS, "pytorch_model*.bin"]  # if there are no safe ones


def repository(source: str) -> tuple[str, str | None]:
    """OWNER/NAME, and the revision after an @; `timm:NAME` is timm's own repository of that name."""
    scheme, _, rest = source.partition(":")
    name, _, revision = rest.partition("@")
    name = f"timm/{name}" if scheme == "timm" and "/" not in name else name
    is_name = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII) and "--" not in name and ".." not in name
    is_revision = re.fullmatch(r"(\w[\w./-]*)?", revision, re.ASCII) and ".." not in revision
    if not is_name or not is_revision or ("@" in rest and not revision):
        raise HubError(f"{source} names no repository; write hf:OWNER/NAME, hf:OWNER/NAME@REVISION or timm:NAME")
    return name, revision or None


def check_target(target: str) -> None:
    """Refuse a target that cannot be pushed to."""
    if not target.startswith("hf:"):
        raise HubError(f"{target} is timm's own page, to read from; push to hf:OWNER/NAME, or name a folder")
    repository(target)


def fetch(
    source: str,
    *,
    called: str | None = None,
    instead: str = "name a file",
    digests: Mapping[str, str] | None = None,
) -> Path:
    """A folder with a repository's weights and configs, from the cache or else from the hub.

    A fetched file is kept only if it has the digest that the hub states. Configs come first, so that a download that
    breaks off never leaves weights without them.
    called: the user's word for it.  instead: what else to do.  digests: those that files must have, even in the cache.
    """
    called = called or source
    name, revision = repository(source)
    if (found := cached(source)) is not None:
        if digests is not None:
            _check(found, {**_stated_by_cache(found), **digests}, f"the cached {called}", "run the command again")
        return found
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise HubError(
            f"{called} is not on this machine and HF_HUB_OFFLINE is set; "
            f"fetch it where there is a network, or {instead}"
        )
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import get_session

    try:
        with _quiet():
            get_session().head(constants.ENDPOINT, timeout=10)  # fail fast: the calls below retry for half a minute
    except Exception as error:  # a missing network raises many kinds of error
        raise HubError(
            f"{called} is not on this machine and the hub cannot be reached ({type(error).__name__}); "
            f"go online, or {instead}"
        ) from None
    try:
        with _quiet():
            found, stated = _download(name, revision)
    except HfHubHTTPError as error:
        end = "check the name, or log in with: hf auth login" if called == source else f"try later, or {instead}"
        raise HubError(f"the hub refused {called}: {one_line(error)}; {end}") from None
    except Exception as error:  # a connection that ends, a file that is cut, a full disk
        raise HubError(
            f"the download of {called} broke off: {one_line(error)[:120]}; try again, or {instead}"
        ) from None
    if found is None:
        raise HubError(
            f"{called} holds no weights that we read ({', '.join(ALL_WEIGHT_PATTERNS)}); name another repository"
        )
    _check(found, {**stated, **(digests or {})}, f"what the hub sent for {called}", f"try again, or {instead}")
    return found


def _download(name: str, revision: str | None) -> tuple[Path | None, dict[str, str]]:
    """Fetch a repository: its folder in the cache, or None without weights; and the digest that the hub states for each
    file, SHA-256 for large files and git's blob id for others."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import tqdm

    class NoBar(tqdm):
        def __init__(self, *values: Any, **options: Any):
            super().__init__(*values, **(options | {"disable": True}))

    listed = [file for file in HfApi().list_repo_tree(name, revision=revision) if isinstance(file, RepoFile)]
    stated = {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in listed}
    kinds = SAFE_WEIGHT_PATTERNS if has_weights(stated, SAFE_WEIGHT_PATTERNS) else ALL_WEIGHT_PATTERNS
    if not has_weights(stated, kinds):
        return None, stated
    snapshot_download(name, revision=revision, allow_patterns=CONFIG_PATTERNS, tqdm_class=NoBar)
    return Path(snapshot_download(name, revision=revision, allow_patterns=[*CONFIG_PATTERNS, *kinds])), stated


def cached(source: str) -> Path | None:
    """A repository's folder in the cache, if its weights are there."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise MissingExtraError("hub", source) from None

    name, revision = repository(source)
    for kinds in (SAFE_WEIGHT_PATTERNS, ALL_WEIGHT_PATTERNS):
        wanted = [*CONFIG_PATTERNS, *kinds]
        try:
            found = Path(snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True))
        except (LocalEntryNotFoundError, FileNotFoundError):
            continue  # not in the cache, or only in part
        except (ValueError, OSError) as error:
            raise HubError(f"{source} cannot be read from the cache: {one_line(error)}") from None
        if has_weights(_names_in(found), kinds):
            return found
    return None


def _stated_by_cache(folder: Path) -> dict[str, str]:
    """The digest of each file: the cache links its name to a file named by the digest that the hub stated."""
    return {path.name: path.resolve().name for path in folder.iterdir() if path.is_symlink()}


def _check(folder: Path, stated: Mapping[str, str], what: str, advice: str) -> None:
    """Refuse, and take out of the cache, a folder with a file whose digest is not the stated one."""
    for path in sorted(folder.iterdir()):
        wanted = stated.get(path.name, "")
        if re.fullmatch(r"[0-9a-f]{64}", wanted):
            own = digest(path)
        elif re.fullmatch(r"[0-9a-f]{40}", wanted):  # git's blob id: not a large file
            content = path.read_bytes()
            own = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        else:
            continue
        if own != wanted:
            with suppress(OSError):
                path.resolve().unlink()  # the file itself; the folder holds links
                remove(folder)
            raise HubError(
                f"{what} is not right: {path.name} has the digest {own[:12]}…, not {wanted[:12]}…, and was deleted; "
                f"{advice}"
            )


def has_weights(files: Iterable[str], kinds: list[str]) -> bool:
    """True if the repository's top folder has weights that match these patterns."""
    return any(fnmatchcase(file, kind) for file in files if "/" not in file for kind in kinds)


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's warnings; our error reports the failure once."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def push(folder: Path, target: str) -> None:
    """Upload a folder of weights as one commit; create the repository if needed."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtraError("hub", target) from None

    check_target(target)
    name, revision = repository(target)
    message = "Weights written by vitreous"
    try:
        with _quiet():
            HfApi().create_repo(name, exist_ok=True)
            HfApi().upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    except Exception as error:  # a missing login, a wrong name and no network raise many kinds of error
        raise HubError(f"{target} could not be pushed: {one_line(error)}; log in with: hf auth login") from None
