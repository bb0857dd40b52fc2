"""What this machine has: versions, devices, threads, extras; and the record that goes with every result."""

from __future__ import annotations

import html
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.errors import ConfigError, without_secrets
from vitreous.files import digest

if TYPE_CHECKING:
    import torch

GIB = 2**30
NOT_INSTALLED = "not installed"
STARTER = Path(__file__).parent / "weights" / "starter.safetensors"  # its card lies beside it


@dataclass(frozen=True)
class Device:
    """A device that can run a model. memory: bytes, if the device has its own."""

    kind: str  # cuda, mps or cpu
    name: str
    memory: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" + (f", {_gib(self.memory)}" if self.memory else "")


@dataclass(frozen=True)
class Extra:
    """One optional part of vitreous, and the packages it still lacks here."""

    name: str
    missing: tuple[str, ...]

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'vitreous[{self.name}]'"

    def __str__(self) -> str:
        return f"{self.name}: " + (f"lacks {', '.join(self.missing)}; {self.install}" if self.missing else "installed")


@dataclass(frozen=True)
class Starter:
    """The model inside this package. bytes: its file's size, or None; is_whole: its digest agrees with its card."""

    bytes: int | None
    is_whole: bool

    def __str__(self) -> str:
        if self.bytes is None:
            return "not in this package; fit begins from scratch unless it is given --weights"
        state = "digest OK" if self.is_whole else "broken: its digest is not that of its card; install vitreous again"
        return f"{self.bytes / 1e6:.1f} MB, {state}"


@dataclass(frozen=True)
class Machine:
    """What a bug report or result states about its machine. memory: bytes."""

    vitreous: str
    python: str
    torch: str
    torch_cuda: str | None  # the CUDA version torch was built for; None for a CPU build
    numpy: str
    system: str
    cores: int
    memory: int | None
    threads: int
    omp_wait_policy: str | None
    devices: tuple[Device, ...]
    starter: Starter
    extras: tuple[Extra, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A plain dict; each extra with the command that installs it."""
        extras = [
            {"name": e.name, "installed": not e.missing, "missing": list(e.missing), "install": e.install}
            for e in self.extras
        ]
        return asdict(self) | {"extras": extras}

    def rows(self) -> Iterator[tuple[str, str]]:
        """(title, text) pairs in reading order; an empty title continues the one above."""
        yield "vitreous", self.vitreous
        yield "python", self.python
        yield "torch", f"{self.torch} ({f'CUDA {self.torch_cuda}' if self.torch_cuda else 'CPU'} build)"
        yield "numpy", self.numpy
        yield "system", self.system
        yield "cores", str(self.cores)
        yield "memory", _gib(self.memory) if self.memory else "unknown"
        yield "threads", f"{self.threads} (OMP_WAIT_POLICY {self.omp_wait_policy or 'not set'})"
        parts = {"devices": self.devices, "starter": (self.starter,), "extras": self.extras, "warnings": self.warnings}
        for title, lines in parts.items():
            for i, line in enumerate(lines):
                yield ("" if i else title), str(line)

    def __str__(self) -> str:
        return "\n".join(f"{title:<10}{text}" for title, text in self.rows())

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        cells = (f"<tr><th>{html.escape(title)}</th><td>{html.escape(text)}</td></tr>" for title, text in self.rows())
        return f"<table>{''.join(cells)}</table>"


def doctor() -> Machine:
    """Look at this machine."""
    import torch

    devices = tuple(_devices())
    return Machine(
        vitreous=_version("vitreous"),
        python=platform.python_version(),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        numpy=_version("numpy"),
        system=platform.platform(),
        cores=core_count(),
        memory=memory(),
        threads=torch.get_num_threads(),
        omp_wait_policy=os.environ.get("OMP_WAIT_POLICY"),
        devices=devices,
        starter=_starter(STARTER),
        extras=tuple(_extras()),
        warnings=tuple(
            _warnings(
                torch=torch.__version__,
                is_cuda_build=torch.version.cuda is not None,
                has_gpu=any(device.kind == "cuda" for device in devices),
                omp_wait_policy=os.environ.get("OMP_WAIT_POLICY"),
            )
        ),
    )


def choose_device(device: torch.device | str | None = None, near: torch.nn.Module | None = None) -> torch.device:
    """The device asked for; else that of model `near`, or a GPU if `near` is on the CPU or None."""
    import torch

    if device is not None:
        try:
            found = torch.device(device)
        except RuntimeError:
            raise ConfigError(f"{device} is not a device; say cpu, cuda or mps") from None
        if found.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"there is no GPU here for device={device}; leave it out, or see: vitreous doctor")
        if found.type == "mps" and not torch.backends.mps.is_available():
            raise ConfigError(f"there is no Apple GPU here for device={device}; leave it out, or see: vitreous doctor")
        return torch.device("cuda", torch.cuda.current_device()) if found == torch.device("cuda") else found
    own = device_of(near) if near is not None else torch.device("cpu")
    if own.type == "cpu" and torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return own


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a model's weights."""
    import torch

    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def record() -> dict[str, Any]:
    """What goes with every result: versions, hardware, commit and command line."""
    here = doctor()
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]  # without this machine's paths
    return {
        "command": list(map(without_secrets, words)),
        "versions": {name: getattr(here, name) for name in ("vitreous", "python", "torch", "torch_cuda", "numpy")},
        "hardware": {
            **{name: getattr(here, name) for name in ("system", "cores", "memory", "threads", "omp_wait_policy")},
            "devices": [str(device) for device in here.devices],
        },
        "commit": _commit(Path(__file__)),
    }


def _version(package: str) -> str:
    return _version_on(tuple(sys.path), package)


@cache
def _version_on(path: tuple[str, ...], package: str) -> str:
    """The version, found once per search path: Python parses a package's whole description to find its version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED  # our own package too, when it runs from its sources


def _devices() -> Iterator[Device]:
    import torch

    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(i)
            yield Device("cuda", properties.name, properties.total_memory)
    if torch.backends.mps.is_available():
        yield Device("mps", platform.processor() or "Apple GPU")
    yield Device("cpu", f"{_cpu_name()}, {torch.backends.cpu.get_cpu_capability()}")


def _starter(file: Path) -> Starter:
    """The starter as a file; it is not loaded."""
    if not file.is_file():
        return Starter(None, False)
    try:
        wanted = json.loads(_text(file.with_suffix(".json")))["packed"]["sha256"]
    except (ValueError, KeyError, TypeError):
        wanted = None
    return Starter(file.stat().st_size, digest(file) == wanted)


def _extras() -> Iterator[Extra]:
    """Read from our own metadata, whose lines look like `matplotlib>=3.9; extra == 'plot'`; nothing is imported."""
    needs: dict[str, list[str]] = {}
    lines = [] if _version("vitreous") == NOT_INSTALLED else metadata.requires("vitreous") or []
    for line in lines:
        package = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if package and extra and extra[1] != "all":
            needs.setdefault(extra[1], []).append(package[0])
    for name, packages in needs.items():
        yield Extra(name, tuple(package for package in packages if _version(package) == NOT_INSTALLED))


def _warnings(*, torch: str, is_cuda_build: bool, has_gpu: bool, omp_wait_policy: str | None) -> Iterator[str]:
    if is_cuda_build and not has_gpu:
        yield (
            f"torch {torch} is a CUDA build, and no GPU answers; check the driver (nvidia-smi), "
            "or save gigabytes with the CPU build (command: pytorch.org/get-started)"
        )
    if fault := _torchvision_fault(torch, is_cuda_build):
        yield f"{fault}, and breaks transformers and timm, which import it when found; pip uninstall torchvision"
    if (omp_wait_policy or "").upper() != "PASSIVE":
        yield (
            "waiting OpenMP threads spin, which on a busy machine can be 40 times slower; "
            "set OMP_WAIT_POLICY=PASSIVE, or import vitreous before torch"
        )


def _torchvision_fault(torch: str, is_cuda_build: bool) -> str | None:
    """Why an installed torchvision would not import beside this torch, found without importing it."""
    spec, version = find_spec("torchvision"), _version("torchvision")
    if spec is None or spec.origin is None or version == NOT_INSTALLED:
        return None
    minor, wanted = int(version.split(".")[1]), int(torch.split(".")[1]) + 15  # 2.6 goes with 0.21, 2.13 with 0.28
    if torch.startswith("2.") and version.startswith("0.") and minor != wanted:
        return f"torchvision {version} does not fit torch {torch} (that needs 0.{wanted})"
    libraries = Path(spec.origin).parent.glob("_C*.so")
    if not is_cuda_build and any(b"libtorch_cuda" in library.read_bytes() for library in libraries):
        return f"torchvision {version} wants CUDA, which torch {torch} has not"
    return None


def core_count() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def process_seconds() -> float:
    """How long this process has run, and so how long its user has waited; 0 if the system does not report it."""
    try:
        began = int(_text(Path("/proc/self/stat")).rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(float(_text(Path("/proc/uptime")).split()[0]) - began, 0.0)
    except (ValueError, IndexError, AttributeError):
        return 0.0


def memory() -> int | None:
    """Bytes of memory this process may use: the machine's, or its container's if that is less."""
    if not hasattr(os, "sysconf"):
        return None
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _text(Path("/sys/fs/cgroup/memory.max")).strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _cpu_name() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def _commit(source: Path) -> str | None:
    """The commit that `source` belongs to, with -dirty when files differ from it; None outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(source.parent), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", source.name)  # else the repository around an installed copy would answer
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
