"""The command line: one thin file per command, each with a function `run` and an EXAMPLE.

Another package adds a command by an entry point `NAME = module` in the group `vitreous.commands`.

Exit 0: done; 1: done, and the answer is no; 2: could not, with one line on stderr; 130, 143: Ctrl-C, SIGTERM.
"""

from __future__ import annotations

import gc
import io
import os
import shlex
import signal
import sys
import traceback
from importlib import import_module
from importlib.metadata import entry_points
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import vitreous
from vitreous import ranks
from vitreous.cli.fit import fields_as_set
from vitreous.cli.show import say, say_line
from vitreous.errors import Interrupted, ToldError, VitreousError, nearest

__all__ = ["main"]

COMMANDS = {  # in the order and under the titles of --help
    "fit": "Start",
    "predict": "Start",
    "look": "Start",
    "serve": "Start",
    "demo": "Start",
    "check": "Data",
    "pack": "Data",
    "eval": "Science",
    "paper": "Science",
    "export": "Ship",
    "convert": "Ship",
    "models": "Machine",
    "plan": "Machine",
    "doctor": "Machine",
}
AGAINST_RESUME = ("--resume", "--force")  # left out of the command that resumes
COMMAND_GROUP = "vitreous.commands"
QUOTES = "put quotes around a name with spaces"
EXTRA_WORDS = {"look": "name one image, a folder, or a pattern in quotes"}  # what to do about an extra argument
EXTRA_WORDS |= dict.fromkeys(("fit", "check", "pack", "serve", "eval"), QUOTES)
OTHER_CALLS = {"eval": "evaluate"}  # every other command wraps the call of its name
OUTSIDE_TITLE = "From other packages"
OTHER_WORDS = {  # other tools' commands: what to type here
    "train": "fit",
    "finetune": "fit",
    "test": "eval",
    "evaluate": "eval",
    "validate": "eval",
    "classify": "predict",
    "infer": "predict",
    "inspect": "look",
    "explain": "look",
    "visualize": "look",
    "reproduce": "paper run",
    "ui": "serve",
}


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    is_process = arguments is None  # else the caller continues after the command
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments or os.environ.get("VITREOUS_DEBUG") == "1"
    arguments = [argument for argument in arguments if argument != "--debug"]  # welcome anywhere on the line
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that a terminal lacks are escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        word = arguments[0] if arguments else ""
        is_ours = word in {*COMMANDS, "--version"}  # waits for no other package
        app = _application(word if word in COMMANDS else None, with_outside=not is_ours)
        code = app.main(arguments, prog_name="vitreous", standalone_mode=False, obj=is_process)
    except KeyboardInterrupt:
        code = 130
    except ToldError:
        code = 2
    except Interrupted as end:
        again = shlex.join(["vitreous", *(word for word in arguments if word not in AGAINST_RESUME), "--resume"])
        if ranks.here().is_first:
            say_line(f"vitreous: stopped and saved at step {end.step:,}; go on: {again}", file=sys.stderr)
        code = 128 + end.number
    except Exception as error:
        if debug:
            say(traceback.format_exc().rstrip("\n"), file=sys.stderr)
        say_line(f"vitreous: {_whose(error)}{' '.join(_line(error).split())}", file=sys.stderr)
        code = 2
    if is_process:
        gc.freeze()  # Python's last collections take as long as half of torch's import
    sys.exit(code if isinstance(code, int) else 0)


class _Command(TyperCommand):
    """A command that imports the call it wraps first, and then keeps torch's objects out of all collections."""

    def invoke(self, ctx: Any) -> Any:
        call = OTHER_CALLS.get(self.name or "", self.name)
        if call in vitreous.HOME:
            getattr(vitreous, call)
            if ctx.obj:
                gc.freeze()
        return super().invoke(ctx)


class _Commands(TyperGroup):
    """The group of all commands: answers an unknown word with ours, and a closed pipe with silence."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise VitreousError(_unknown(args[0], args[1:], list(self.commands)))
        if args[0] == "fit":
            options = {name for each in self.commands["fit"].params for name in each.opts} | {"--help"}
            args = ["fit", *fields_as_set(args[1:], options)]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(128 + 13) from None  # as the shell reports a process that SIGPIPE ended
        return result


def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", metavar="", help="Show the traceback of an error (or set VITREOUS_DEBUG=1).")
    ] = False,
) -> None:
    """A see-through workbench for Vision Transformers."""
    if version:
        print(f"vitreous {vitreous.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _application(only: str | None = None, *, with_outside: bool = False) -> Any:
    """only: the one command to import."""
    app = _empty_application()
    app.callback(invoke_without_command=True)(_start)
    for name in COMMANDS if only is None else [only]:
        _add(app, name, import_module(f"vitreous.cli.{name}"), COMMANDS[name])
    if with_outside:
        _add_outside(app)
    return typer.main.get_command(app)


def _empty_application() -> typer.Typer:
    return typer.Typer(
        cls=_Commands,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add(app: typer.Typer, name: str, command: Any, panel: str) -> None:
    """command: a module with `run` and EXAMPLE."""
    first, *rest = command.run.__doc__.split("\n\n")
    app.command(
        name,
        cls=_Command,
        help="\n\n".join([first, *rest, f"Example:  {command.EXAMPLE}"]),
        short_help=f"{first}\n[dim]{command.EXAMPLE}[/dim]",
        rich_help_panel=panel,
    )(command.run)


def _add_outside(app: typer.Typer) -> None:
    """Add the commands of other packages; name each that fails, and leave it out."""
    for found in entry_points(group=COMMAND_GROUP):
        if found.name in COMMANDS:  # ours cannot be replaced from outside
            continue
        try:
            command, alone = found.load(), _empty_application()
            _add(alone, found.name, command, OUTSIDE_TITLE)
            typer.main.get_command(alone)  # a signature that typer cannot read fails here, not among ours
        except (Exception, SystemExit) as error:
            package, why = found.dist.name if found.dist else found.module, f"{type(error).__name__}: {error}"
            line = f"the command {found.name} of {package} cannot be used ({why}); mend or uninstall {package}"
            say_line(f"vitreous: {' '.join(line.split())}", file=sys.stderr)
        else:
            _add(app, found.name, command, OUTSIDE_TITLE)


def _unknown(word: str, rest: list[str], commands: list[str]) -> str:
    """rest: the words typed after it, shown with the right command."""
    known = nearest(word, [*commands, *OTHER_WORDS], 1)
    if not known:
        return f"there is no command {word!r}; there are: {', '.join(commands)}"
    near = OTHER_WORDS.get(known[0], known[0])
    return f"there is no command {word!r}; try: {' '.join(['vitreous', near, *map(shlex.quote, rest)])}"


def _line(error: BaseException) -> str:
    match error:
        case VitreousError():
            return str(error)
        case typer.TyperException():  # how the command line was written
            text = error.format_message().rstrip(".")
            if "unexpected extra argument" in text and (hint := EXTRA_WORDS.get(_command(error).strip())):
                said, _, extra = text.partition(" (")
                first, *more = extra.split()
                text = f"{said} ({first.rstrip(')')}{' …' * bool(more)}); {hint}"
            return f"{text}; see: vitreous {_command(error)}--help"
        case typer.Abort():
            return "aborted"
        case OSError(strerror=str(reason), filename=str(name)):
            return f"{name}: {reason}"
        case _:
            return f"unexpected {type(error).__name__}: {error}; this is our mistake: report it with what --debug shows"


def _whose(error: BaseException) -> str:
    """The rank that met the error, if it is not the first."""
    try:
        where = ranks.here()
    except VitreousError:
        return ""
    return "" if where.is_first else f"rank {where.rank}: "


def _command(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.info_name} " if context and context.parent else ""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # an exception, so that what is half-written is cleared away
