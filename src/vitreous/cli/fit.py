"""vitreous fit"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import typer

from vitreous.cli.show import Json, show
from vitreous.errors import ConfigError

EXAMPLE = "vitreous fit photos"


def fields_as_set(words: list[str], options: Collection[str]) -> list[str]:
    """The command line with a recipe's fields, and other tools' names for them, as --set: --lr 1e-3 is peak_lr=1e-3."""
    out, rest = [], iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        field = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and option not in options and (ours := _field(field)) is not None:
            value = value if equals or "{}" not in ours else next(rest, "")  # --ema has no value
            out += ["--set", ours.format(value).replace('"', "")]
        else:
            out.append(word)
    return out


def _field(name: str) -> str | None:
    """NAME={} of a recipe's field, by our name or another tool's; None if there is no such field."""
    from vitreous.options import options_of
    from vitreous.training.recipe import THEIR_WORDS, Recipe

    return f"{name}={{}}" if name in {each.name for each in options_of(Recipe())} else THEIR_WORDS.get(name)


def run(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="A folder, zip, shards, a table; or, with --resume, a run.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help='A network, such as "S/16 registers=4".')] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Weights to begin from: a file, a run, deit-tiny, starter, hf:OWNER/NAME; none."
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(metavar="NAME", help="How to train; `list` shows them all.")] = "auto",
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which layers train: head, last-K, all, layer-decay, full.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", metavar="", help="Train with several learning rates; dev chooses.")
    ] = False,
    then: Annotated[str | None, typer.Option(metavar="DATA", help="Fine-tune the result on these images.")] = None,
    then_recipe: Annotated[str, typer.Option(metavar="NAME", help="The recipe of --then.")] = "auto",
    out: Annotated[str | None, typer.Option(metavar="DIR", help="The run's folder (runs/DATA-N).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on with a run that was ended, from its last state.")
    ] = False,
    epochs: Annotated[float | None, typer.Option(metavar="N", help="How long: times through the images.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="How long: changes of the weights.")] = None,
    seconds: Annotated[float | None, typer.Option(metavar="S", help="How long: time for the steps.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of first weights, order, augmentation.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any field of the recipe; repeatable.")
    ] = None,
    then_set: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Likewise for --then.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to train; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Readers; by default one for each core.")] = None,
    folds: Annotated[
        int | None, typer.Option(metavar="N", help="Cross-validate in N parts (5 below 2,000 images, else 0).")
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Keep series together: folder, exif-day, a column, or a regular expression on the path.",
        ),
    ] = None,
    skip_bad_shards: Annotated[
        bool,
        typer.Option("--skip-bad-shards", metavar="", help="Go on without shards that cannot be read; tell the loss."),
    ] = False,
    on_nan: Annotated[
        str, typer.Option(metavar="stop|rollback", help="When the loss is not finite: stop, or pass over the batch.")
    ] = "stop",
    log: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also write to tensorboard or trackio; repeatable.")
    ] = None,
    parallel: Annotated[
        str,
        typer.Option(metavar="auto|ddp|fsdp", help="How torchrun's devices share a training: copies, shards; auto."),
    ] = "auto",
    no_check: Annotated[bool, typer.Option("--no-check", metavar="", help="Do not check the images first.")] = False,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite an older run in DIR.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", metavar="", help="Tell details too: estimates, memory, precision, terms.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model on your images: checked, judged honestly, with a report."""
    import vitreous
    from vitreous import ranks
    from vitreous.cli.training_display import display, recipes_table, tell_result
    from vitreous.training.recipe import Recipe

    if recipe == "list":
        recipes_table(json=json)
        return
    if data is None:
        raise ConfigError("there are no images to fit to; name a folder: vitreous fit FOLDER")
    fields, then_fields = _pairs(set_, "--set"), _pairs(then_set, "--then-set")
    changes = _changes(fields, _length(epochs, steps, seconds), {"model": model, "policy": policy, "seed": seed})
    Recipe().change(**changes)  # refuse a wrong name before anything is read
    Recipe().change(**then_fields)
    model, policy = changes.pop("model", model), changes.pop("policy", policy)
    _refuse_twice(then_fields, {"policy": (policy, "--policy")}, "--then-set")
    with display(verbose=verbose) as tell:
        result = vitreous.fit(
            data, model=model, weights=weights, recipe=recipe, policy=policy, sweep=sweep,
            then=then, then_recipe=then_recipe, then_overrides=then_fields,
            out=out, resume=resume, force=force, device=device, workers=workers, check=not no_check,
            folds=folds, group_by=group_by, skip_bad_shards=skip_bad_shards,
            on_nan=on_nan, log=log or (), parallel=parallel, tell=tell, **changes,
        )  # fmt: skip
    if not ranks.here().is_first:
        return
    if json:
        show("fit", result, json=True)
    else:
        tell_result(result.told, verbose=verbose)


def _pairs(words: list[str] | None, option: str) -> dict[str, Any]:
    for word in words or ():
        if "=" not in word:
            raise ConfigError(f"{option} {word!r} has no value; write NAME=VALUE, such as {option} peak_lr=1e-3")
    return dict(word.partition("=")[::2] for word in words or ())


def _changes(fields: dict[str, Any], length: dict[str, str], own: dict[str, Any]) -> dict[str, Any]:
    """Fields from --set and from their own options, each given once.  own: by name, the value of --NAME."""
    given = {name: (value, f"--{name}") for name, value in own.items()}
    given |= {name: (text, f"--{text.split()[1]}") for name, text in length.items()}
    _refuse_twice(fields, given)
    return fields | length | ({} if own["seed"] is None else {"seed": own["seed"]})


def _refuse_twice(fields: dict[str, Any], given: dict[str, tuple[Any, str]], option: str = "--set") -> None:
    """given: by the field's name, the value of an option of its own, and that option."""
    for name, (value, own) in given.items():
        if value is not None and name in fields:
            raise ConfigError(f"{name} is given twice, by {own} and by {option} {name}={fields[name]}; give one")


def _length(epochs: float | None, steps: int | None, seconds: float | None) -> dict[str, str]:
    lengths = {"epochs": epochs, "steps": steps, "seconds": seconds}
    given = {unit: count for unit, count in lengths.items() if count is not None}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(f'--{unit}' for unit in given)} say how long twice; give one")
    return {"length": next(f"{count:.12g} {unit}" for unit, count in given.items())} if given else {}
