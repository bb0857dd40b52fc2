"""The Hugging Face hub, when somebody names it: `hf:OWNER/NAME` and `timm:NAME`. Nothing else here uses a network."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitreous.errors import HubError, MissingExtraError
from vitreous.weights.reading import one_line

SCHEMES = ("hf:", "timm:")
LIGHT = ["*.json", "model*.safetensors", "*.npz"]
WANTED = [*LIGHT, "pytorch_model*.bin"]  # where there are no safetensors


def repository(source: str) -> tuple[str, str | None]:
    """OWNER/NAME and the revision, if one follows an @; `timm:NAME` is timm's own page of that name."""
    scheme, _, rest = source.partition(":")
    name, _, revision = rest.partition("@")
    name = f"timm/{name}" if scheme == "timm" and "/" not in name else name
    is_name = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII) and "--" not in name and ".." not in name
    is_revision = re.fullmatch(r"(\w[\w./-]*)?", revision, re.ASCII) and ".." not in revision
    if not is_name or not is_revision or ("@" in rest and not revision):
        raise HubError(f"{source} names no repository; write hf:OWNER/NAME, hf:OWNER/NAME@REVISION or timm:NAME")
    return name, revision or None


def fetch(source: str) -> Path:
    """A folder with the weights and configs of a repository: from the cache if they are there, else from the hub."""
    try:
        from huggingface_hub import constants, list_repo_files, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
        from huggingface_hub.utils import get_session
    except ImportError:
        raise MissingExtraError("hub", f"{source} needs huggingface_hub") from None

    name, revision = repository(source)
    for kinds in (LIGHT, WANTED):
        try:
            cached = Path(snapshot_download(name, revision=revision, allow_patterns=kinds, local_files_only=True))
        except (LocalEntryNotFoundError, FileNotFoundError):
            continue  # not in the cache, or only in part
        except (ValueError, OSError) as error:
            raise HubError(f"{source} cannot be read from the cache: {one_line(error)}") from None
        if _has_weights(cached):
            return cached
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise HubError(
            f"{source} is not in the cache and HF_HUB_OFFLINE is set; fetch it where there is a network, or name a file"
        )
    try:
        with _quiet():
            get_session().head(constants.ENDPOINT, timeout=10)  # the calls below try for half a minute
            is_light = any(file.endswith(".safetensors") for file in list_repo_files(name, revision=revision))
            kinds = LIGHT if is_light else WANTED
            fetched = Path(snapshot_download(name, revision=revision, allow_patterns=kinds))
    except HfHubHTTPError as error:
        raise HubError(
            f"the hub refused {source}: {one_line(error)}; check the name, or log in with: hf auth login"
        ) from None
    except Exception as error:  # no network shows itself in many ways
        raise HubError(
            f"{source} is not in the cache and the hub cannot be reached ({type(error).__name__}); "
            f"name a file, or go online"
        ) from None
    if not _has_weights(fetched):
        raise HubError(f"{source} holds no weights that we read ({', '.join(WANTED[1:])}); name another repository")
    return fetched


def _has_weights(folder: Path) -> bool:
    return folder.is_dir() and any(p.suffix in (".safetensors", ".bin", ".npz") for p in folder.iterdir())


@contextmanager
def _quiet() -> Iterator[None]:
    """The library's own warnings held back: what went wrong is said once, by us."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def push(folder: Path, target: str) -> None:
    """Upload a folder of weights as one commit, making the repository if there is none."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtraError("hub", f"{target} needs huggingface_hub") from None

    name, revision = repository(target)
    message = "Weights written by vitreous"
    try:
        with _quiet():
            HfApi().create_repo(name, exist_ok=True)
            HfApi().upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    except Exception as error:  # a missing login, a wrong name and no network show themselves in many ways
        raise HubError(f"{target} could not be pushed: {one_line(error)}; log in with: hf auth login") from None
