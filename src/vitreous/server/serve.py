"""`vitreous.serve`: a model answers over HTTP until Ctrl-C or SIGTERM."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from vitreous.errors import BusyError, CheckpointError, ConfigError
from vitreous.evaluation import learned_images
from vitreous.images import examples, open_data
from vitreous.images.imageset import ImageSet
from vitreous.machine import choose_device, doctor
from vitreous.models.model import Model, is_untrained, replica, unwrapped
from vitreous.server import exported, runtimes
from vitreous.server.exported import Exported
from vitreous.server.guard import Access
from vitreous.server.images.similar import Neighbours
from vitreous.server.limits import Limits
from vitreous.server.queue import WorkQueue
from vitreous.server.served import Served
from vitreous.weights.load_model import load_trained, newest_run

SHUTDOWN_SECONDS = 30  # to finish accepted requests
UNENCRYPTED = "Not encrypted: others on this network may read what is sent."
MAX_CONNECTIONS, BACKLOG = 1024, 128
DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Address:
    """Where the server listens. shown: addresses for a browser, with the token, if any, behind #."""

    host: str
    port: int
    shown: tuple[str, ...]
    token: str | None
    model: str
    workers: int
    threads: int

    @property
    def for_phones(self) -> str | None:
        """The first address that another machine can open."""
        return next((each for each in self.shown if not _is_loopback(urlsplit(each).hostname or "")), None)

    def to_json(self) -> dict[str, Any]:
        body = {"addresses": list(self.shown), "host": self.host, "port": self.port, "token": self.token}
        return body | {"model": self.model, "workers": self.workers, "threads": self.threads}

    def __str__(self) -> str:
        if len(self.shown) == 1 and not self.token:
            return f"{self.model} answers at {self.shown[0]} (Ctrl-C ends it)"
        where = [f"  {address}" for address in self.shown[:1]]
        where += [f"  {address}   on this network" for address in self.shown[1:]]
        token = [UNENCRYPTED, f"Programs send: Authorization: Bearer {self.token}"] if self.token else []
        return "\n".join([f"{self.model} answers at (Ctrl-C ends it)", *where, *token])


def serve(
    model: str | os.PathLike[str] | Model = "last",
    *,
    data: str | os.PathLike[str] | ImageSet | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    lan: bool = False,
    token: str | None = None,
    names: tuple[str, ...] = (),
    runtime: str | None = None,
    device: str | None = None,
    workers: int | None = None,
    anyway: bool = False,
    untrained: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    tell: Callable[[Address], None] | None = None,
) -> None:
    """Answer over HTTP, with a page, until Ctrl-C or SIGTERM; accepted requests are finished first.

    model: an encoder without a head gives features and attention, and names nothing.
    data: training images, to show the most similar ones.
    lan: open to everybody on this network who has the token; one is made if none is given.
    port: 0 is any free one.  names: further host names of the server, behind a proxy.
    runtime: what answers: torch, or on a CPU a target of `vitreous.export` such as onnx; attention stays with torch.
    device: by default a GPU, if there is one.  workers: threads that compute; by default they share the cores.
    tell: called with the address once the server answers.

    model may be a folder that `vitreous.export` wrote: its file answers, on the CPU, without attention.
    anyway: serve the folder even if it does not agree with PyTorch.  untrained: serve random weights too.
    """
    _check(token, port, workers)
    source, name, runtime = _source(
        model, runtime, device, has_data=data is not None, anyway=anyway, untrained=untrained
    )
    images = None if data is None else open_data.open(data)
    with _listen("0.0.0.0" if lan else host, port) as listening:  # noqa: S104  the user asked for it
        access = _access(listening, token, (*names, host), lan=lan)
        neighbours = other = None
        place = torch.device("cpu")
        if isinstance(source, Model):
            other = None if runtime == "torch" else runtimes.OtherRuntime(source, runtime)
            place = choose_device(device if other is None else "cpu", near=source)
        queue = WorkQueue(source, place, limits.queue, cores=doctor().cores, workers=workers, runtime=other)
        queue.open()  # the model is on its device now
        if isinstance(source, Model) and images is not None:
            neighbours = Neighbours(replica(source), images)
        shown = examples.choose(images, source.labels or ())
        learned = images is not None and isinstance(source, Model) and _has_learned(source, images)
        served = Served(queue, source, neighbours, name=name, runtime=runtime, examples=shown, learned=learned)
        _run(served, access, limits, listening, tell, _addresses(listening, access.token, lan=lan))


def _has_learned(model: Model, images: ImageSet) -> bool:
    """Whether the model has learned from images that the page begins with."""
    return bool(learned_images.overlap(model, images, examples.of(images)).learned)


def _run(
    served: Served,
    access: Access,
    limits: Limits,
    listening: socket.socket,
    tell: Callable[[Address], None] | None,
    shown: tuple[str, ...],
) -> None:
    import uvicorn

    from vitreous.server.app import make_app

    config = uvicorn.Config(
        make_app(served, access, limits),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ws="none",
    )
    listening.listen(BACKLOG)  # a client may call as soon as it has the address
    host, port = listening.getsockname()[:2]
    if tell is not None:
        tell(Address(host, port, shown, access.token, served.name, served.queue.count, served.queue.threads))
    uvicorn.Server(config).run(sockets=[listening])


def _check(token: str | None, port: int, workers: int | None) -> None:
    if token is not None and (len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError("a token is 8 or more plain letters and digits; leave --token out of --lan and one is made")
    if not 0 <= port < 2**16:
        raise ConfigError(f"port {port} does not exist; choose one from 1 to 65535, or 0 for any free one")
    if workers is not None and workers < 1:
        raise ConfigError(f"{workers} workers answer nothing; give 1 or more, or leave it out")


def _source(
    model: str | os.PathLike[str] | Model,
    runtime: str | None,
    device: str | None,
    *,
    has_data: bool,
    anyway: bool,
    untrained: bool,
) -> tuple[Model | Exported, str, str]:
    """What answers, its name, and its runtime: an exported folder has its own."""
    folder = exported.find(model)
    if folder is None:
        runtime = "torch" if runtime is None else runtime
        runtimes.check(runtime, device)
        return *_model(model, untrained=untrained), runtime
    found, name = exported.read(folder, anyway=anyway), folder.resolve().name
    if runtime not in (None, found.target.name):
        raise ConfigError(f"{name} is written for {found.target.name}, not {runtime}; leave --runtime out")
    if device not in (None, "cpu"):
        raise ConfigError(f"{name} is an exported folder, which answers on the CPU; leave --device out")
    if has_data:
        raise ConfigError(
            f"{name} is an exported folder, which cannot find similar images; leave --data out, or serve the model "
            f"that it was made of"
        )
    return found, name, found.target.name


def _model(model: str | os.PathLike[str] | Model, *, untrained: bool) -> tuple[Model, str]:
    """The model and its name, without folders of this machine."""
    if isinstance(model, Model):
        loaded, name = unwrapped(model), type(model).__name__
    else:
        text = os.fspath(model)
        if text == "last" and not Path(text).exists():
            text = str(_newest())
        loaded = load_trained(text, untrained=untrained)
        name = Path(text).resolve().name if Path(text).exists() else text
    shown = f"{name} (random weights)" if is_untrained(loaded) else name
    return loaded.eval().requires_grad_(False), shown


def _newest() -> Path:
    try:
        return newest_run()
    except CheckpointError:
        raise CheckpointError(
            "there is no finished run here to serve; name a model: vitreous serve MODEL, or make one: vitreous demo"
        ) from None


def _listen(host: str, port: int) -> socket.socket:
    """A socket that holds the port: a taken port is refused before any other work."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (socket.gaierror, UnicodeError):
        raise ConfigError(
            f"{host} is not an address of this machine; use 127.0.0.1, or --lan for the network"
        ) from None
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # otherwise asyncio leaves Nagle on
    if os.name != "nt":  # on Windows it would share a taken port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if isinstance(error, PermissionError):
            raise ConfigError(f"port {port} needs more rights; choose one above 1023: --port 8000") from None
        if error.errno in (98, 48, 10048):  # in use: Linux, macOS, Windows
            raise BusyError(f"port {port} of {host} is taken; choose another: --port {port % 65535 + 1}") from None
        raise ConfigError(f"{host}:{port} cannot be listened on: {error.strerror}; use --host 127.0.0.1") from None
    return listening


def _access(listening: socket.socket, token: str | None, names: tuple[str, ...], *, lan: bool) -> Access:
    """Callers from other machines need a token."""
    is_local = _is_loopback(listening.getsockname()[0])
    own = socket.gethostname().lower()
    known = {name.lower() for name in names} | ({own, f"{own}.local"} if lan else set())
    return Access(
        is_local=is_local,
        names=frozenset(known),
        token=token if token or is_local else secrets.token_urlsafe(12),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _addresses(listening: socket.socket, token: str | None, *, lan: bool) -> tuple[str, ...]:
    host, port = listening.getsockname()[:2]
    behind = f"#token={token}" if token else ""
    here = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host  # noqa: S104
    found = [here, *([_own_address()] if lan else [])]
    return tuple(f"http://{each}:{port}/{behind}" for each in dict.fromkeys(found))


def _own_address() -> str:
    """This machine's address on its network. Connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
