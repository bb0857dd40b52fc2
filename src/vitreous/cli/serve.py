"""vitreous serve"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous.cli.order import check_order
from vitreous.cli.show import Json, show
from vitreous.errors import ConfigError

if TYPE_CHECKING:
    from vitreous.server.serve import Address

EXAMPLE = "vitreous serve last --data photos"
CODE_WORDS = "  scan it with a phone on this network"


def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A file or folder of weights, a run, last, deit-tiny, or an exported folder."
        ),
    ] = "last",
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="Training images, to show the most similar ones.")
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="The port; 0 is any that is free.")] = 8000,
    lan: Annotated[
        bool, typer.Option("--lan", metavar="", help="For everybody on this network who has the token it prints.")
    ] = False,
    token: Annotated[
        str | None, typer.Option(metavar="WORD", help="Ask every caller for this token.", envvar="VITREOUS_TOKEN")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="One more name it is called by, behind a proxy.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="torch|TARGET",
            help="What answers, such as onnx; attention stays with torch. An exported folder has its own.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Threads that answer; they share the cores.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", metavar="", help="Even an export that does not agree with PyTorch.")
    ] = False,
    untrained: Annotated[bool, typer.Option("--untrained", metavar="", help="Even random weights.")] = False,
    json: Json = False,
) -> None:
    """Answer over HTTP, with a page: drop an image, see the answer and why, try to break it.

    Only for this machine, unless --lan is given. Nothing is written to disk, nothing leaves it.
    """
    import vitreous

    def tell(address: Address) -> None:
        if not json:
            show_code(address.for_phones)
        show("serve", address, json=json)
        sys.stdout.flush()  # even into a pipe: whoever started it waits for the address

    check_order("serve", model)
    vitreous.serve(
        model, data=data, host=host, port=port, lan=lan, token=token, names=tuple(name or ()),
        runtime=runtime, device=device, workers=workers, anyway=anyway, untrained=untrained, tell=tell,
    )  # fmt: skip


def show_code(address: str | None) -> None:
    """The address for the camera of a phone, if the terminal can show all of it."""
    from vitreous.server.qr_code import QUIET_ZONE, qr_code, terminal_lines

    if address is None or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return
    try:
        code = qr_code(address.encode())
        lines = terminal_lines(code)
        "".join(lines).encode(sys.stdout.encoding)
    except (ConfigError, UnicodeError):  # too long an address, or a terminal without blocks
        return
    beside = shutil.get_terminal_size().columns - len(code) - 2 * QUIET_ZONE
    if beside >= len(CODE_WORDS):
        lines[len(lines) // 2] += CODE_WORDS  # not below: 24 lines hold the code and the addresses
    if beside >= 0:
        print("\n".join(lines))
