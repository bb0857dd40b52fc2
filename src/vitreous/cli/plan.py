"""vitreous plan"""

from __future__ import annotations

from typing import Annotated

import typer

from vitreous.cli.show import Json, say_line, show

EXAMPLE = "vitreous plan L/16 --images 1281167 --epochs 90 --batch 4096 --devices 8 --device h100"
MODEL_TO_PLAN = typer.Argument(metavar="MODEL", help='A network, such as "S/16 registers=4"; or weights, or a run.')


def run(
    model: Annotated[str, MODEL_TO_PLAN],
    images: Annotated[int | None, typer.Option(metavar="N", help="Training images.")] = None,
    image_size: Annotated[int | None, typer.Option(metavar="PX", help="Pixels of a side; the model's.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images of a step, on all devices (512).")] = None,
    epochs: Annotated[float | None, typer.Option(metavar="N", help="How long: times through the images.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="How long: changes of the weights.")] = None,
    devices: Annotated[int, typer.Option(metavar="N", help="How many, on all nodes together.")] = 1,
    device: Annotated[str, typer.Option(metavar="NAME", help="h100, a100 …, cpu, here; `list` shows all.")] = "here",
    precision: Annotated[str, typer.Option(metavar="auto|float32|bfloat16", help="auto: bfloat16 on a GPU.")] = "auto",
    checkpointing: Annotated[
        bool | None,
        typer.Option("--checkpointing/--no-checkpointing", metavar="", help="Recompute blocks; by default if needed."),
    ] = None,
    parallel: Annotated[str, typer.Option(metavar="auto|ddp|fsdp", help="How devices share the work.")] = "auto",
    like: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Length, batch, optimizer of a recipe, such as p1-jft.")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", metavar="", help="Time 20 real steps on this machine.")] = False,
    slurm: Annotated[str | None, typer.Option(metavar="FILE", help="Write a launch file for sbatch.")] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite FILE.")] = False,
    json: Json = False,
) -> None:
    """Say what a training run needs before it is paid for: memory, time, devices."""
    import vitreous
    from vitreous.files import claim, write_bytes
    from vitreous.training.plan import devices as kinds
    from vitreous.training.plan import slurm as launch

    if device == "list":
        rows = kinds.rows()
        if json:
            show("plan", {"devices": rows}, json=True)
        else:
            for row in rows:
                say_line(f"{row['name']:<10} {row['memory']:>6.1f} GiB  {row['product']}")
        return
    if slurm is not None:
        claim(slurm, force=force)
    said = vitreous.plan(
        model, images=images, batch=batch, devices=devices, device=device, image_size=image_size, epochs=epochs,
        steps=steps, precision=precision, checkpointing=checkpointing, parallel=parallel, like=like, measure=measure,
    )  # fmt: skip
    if slurm is not None:
        write_bytes(slurm, launch.script(said).encode(), force=force)
    if json:
        show("plan", said.to_json() | ({"slurm": slurm} if slurm else {}), json=True)
        return
    show("plan", said, json=False)
    do = f"sbatch {slurm} DATA OUT" if slurm else "--slurm FILE writes a launch file; --measure times 20 steps here"
    say_line(f"next     {do}")
