"""The Hugging Face hub, when somebody names it: `hf:OWNER/NAME` and `timm:NAME`. Nothing else here uses a network."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vitreous.errors import HubError, MissingExtraError

SCHEMES = ("hf:", "timm:")
WANTED = ["*.json", "model*.safetensors", "pytorch_model*.bin", "*.npz"]


def repository(source: str) -> tuple[str, str | None]:
    """OWNER/NAME and the revision, if one follows an @; `timm:NAME` is timm's own page of that name."""
    scheme, _, rest = source.partition(":")
    name, _, revision = rest.partition("@")
    name = f"timm/{name}" if scheme == "timm" and "/" not in name else name
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise HubError(f"{source} names no repository; write hf:OWNER/NAME or timm:NAME")
    return name, revision or None


def fetch(source: str) -> Path:
    """A folder with the weights and configs of a repository: from the cache if they are there, else from the hub."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise MissingExtraError("hub", f"{source} needs huggingface_hub") from None

    name, revision = repository(source)
    try:
        return _weights_in(
            Path(snapshot_download(name, revision=revision, allow_patterns=WANTED, local_files_only=True)), source
        )
    except (LocalEntryNotFoundError, FileNotFoundError):
        pass  # not in the cache, or only in part
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise HubError(
            f"{source} is not in the cache and HF_HUB_OFFLINE is set; fetch it where there is a network, or name a file"
        )
    try:
        return _weights_in(
            Path(snapshot_download(name, revision=revision, allow_patterns=_lighter(name, revision))), source
        )
    except HfHubHTTPError as error:
        line = str(error).strip().splitlines()[0]
        raise HubError(f"the hub refused {source}: {line}; check the name, or log in with: hf auth login") from None
    except FileNotFoundError:
        raise HubError(f"{source} holds no weights that we read ({', '.join(WANTED[1:])})") from None
    except Exception as error:  # no network shows itself in many ways
        raise HubError(
            f"{source} is not in the cache and the hub cannot be reached ({type(error).__name__}); "
            f"name a file, or go online"
        ) from None


def _lighter(name: str, revision: str | None) -> list[str]:
    """Safetensors alone where a repository has both kinds."""
    from huggingface_hub import list_repo_files

    files = list_repo_files(name, revision=revision)
    return (
        [w for w in WANTED if w != "pytorch_model*.bin"] if any(f.endswith(".safetensors") for f in files) else WANTED
    )


def _weights_in(folder: Path, source: str) -> Path:
    if not any(p.suffix in (".safetensors", ".bin", ".npz") for p in folder.iterdir()):
        raise FileNotFoundError(source)
    return folder


def push(folder: Path, target: str) -> None:
    """Upload a folder of weights as one commit, making the repository if there is none."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtraError("hub", f"{target} needs huggingface_hub") from None

    name, _ = repository(target)
    try:
        HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(repo_id=name, folder_path=folder, commit_message="Weights written by vitreous")
    except Exception as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise HubError(f"{target} could not be pushed: {line}; log in with: hf auth login") from None
