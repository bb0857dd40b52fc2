"""The Hugging Face hub: `hf:OWNER/NAME` and `timm:NAME`. Nothing else here uses a network."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from vitreous.errors import HubError, MissingExtraError
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


def fetch(source: str) -> Path:
    """A folder with a repository's weights and configs, from the cache or else from the hub."""
    try:
        from huggingface_hub import constants, list_repo_files, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
        from huggingface_hub.utils import get_session
    except ImportError:
        raise MissingExtraError("hub", f"{source} needs huggingface_hub") from None

    name, revision = repository(source)
    for kinds in (SAFE_WEIGHT_PATTERNS, ALL_WEIGHT_PATTERNS):
        wanted = [*CONFIG_PATTERNS, *kinds]
        try:
            cached = Path(snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True))
        except (LocalEntryNotFoundError, FileNotFoundError):
            continue  # not in the cache, or only in part
        except (ValueError, OSError) as error:
            raise HubError(f"{source} cannot be read from the cache: {one_line(error)}") from None
        if has_weights(_names_in(cached), kinds):
            return cached
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise HubError(
            f"{source} is not in the cache and HF_HUB_OFFLINE is set; fetch it where there is a network, or name a file"
        )
    try:
        with _quiet():
            get_session().head(constants.ENDPOINT, timeout=10)  # fail fast: the calls below retry for half a minute
            kinds = (
                SAFE_WEIGHT_PATTERNS
                if has_weights(list_repo_files(name, revision=revision), SAFE_WEIGHT_PATTERNS)
                else ALL_WEIGHT_PATTERNS
            )
            fetched = Path(snapshot_download(name, revision=revision, allow_patterns=[*CONFIG_PATTERNS, *kinds]))
    except HfHubHTTPError as error:
        raise HubError(
            f"the hub refused {source}: {one_line(error)}; check the name, or log in with: hf auth login"
        ) from None
    except Exception as error:  # a missing network raises many kinds of error
        raise HubError(
            f"{source} is not in the cache and the hub cannot be reached ({type(error).__name__}); "
            f"name a file, or go online"
        ) from None
    if not has_weights(_names_in(fetched), ALL_WEIGHT_PATTERNS):
        raise HubError(
            f"{source} holds no weights that we read ({', '.join(ALL_WEIGHT_PATTERNS)}); name another repository"
        )
    return fetched


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
        raise MissingExtraError("hub", f"{target} needs huggingface_hub") from None

    check_target(target)
    name, revision = repository(target)
    message = "Weights written by vitreous"
    try:
        with _quiet():
            HfApi().create_repo(name, exist_ok=True)
            HfApi().upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    except Exception as error:  # a missing login, a wrong name and no network raise many kinds of error
        raise HubError(f"{target} could not be pushed: {one_line(error)}; log in with: hf auth login") from None
