"""How fast augmentation is: images/s.   python benchmarks/augment_speed.py [--out FILE] [--picture FILE]

crop + flip + RandAugment(2, 10) from 256-px bytes to normalised 224 px, and the other recipes; 32-px shift + flip from
memory, which stays bytes. A CPU runs eagerly on all its threads, CUDA runs compiled. The draws on the host are timed
separately: they run while the device works. Reported are the best round, since other work only adds time, and the
median; on a CPU also images per second of CPU time, which repeats on a busy machine.
On CUDA the compiled bytes are compared with the CPU's.   --picture FILE writes docs/pictures/augmentations.png instead.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from PIL import Image, ImageDraw

from vitreous.images.embedded import shapes
from vitreous.images.pixels import augment as augmenting
from vitreous.images.pixels.augment import Augment, draw
from vitreous.machine import record
from vitreous.models.preprocess import Preprocess

CASES = {
    "crop + flip": Augment(),
    "crop + flip + RandAugment(2, 10)": Augment(rand_augment=(2, 10)),
    "DeiT: + RandAugment(2, 9), erase, MixUp, CutMix": Augment(
        rand_augment=(2, 9),
        rand_augment_table="timm",
        rand_augment_deviation=0.5,
        erase=0.25,
        mixup=0.8,
        cutmix=1.0,
    ),
    "DeiT III: + ThreeAugment, jitter, MixUp, CutMix": Augment(
        three_augment=True, colour_jitter=0.3, mixup=0.8, cutmix=1.0
    ),
}
SMALL = Augment(size=(32, 32), crop="shift")


def speed(work: Callable[[], object], images: int, device: str, rounds: int) -> dict:
    work()
    seconds, busy = [], []
    for _ in range(rounds):
        wait(device)
        start, begun = time.perf_counter(), time.process_time()
        work()
        wait(device)
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - begun)
    found = {
        "images_per_second": round(images / min(seconds)),
        "median": round(images / statistics.median(seconds)),
        "rounds": rounds,
    }
    return found if device == "cuda" else found | {"images_per_cpu_second": round(images / min(busy))}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def photographs(count: int, side: int) -> torch.Tensor:
    """Generated pictures, enlarged: bytes, B side side 3."""
    small = torch.from_numpy(shapes.batch(range(min(count, 64)))[0]).permute(0, 3, 1, 2)
    large = torch.nn.functional.interpolate(small, (side, side), mode="bilinear", antialias=True)
    return large.permute(0, 2, 3, 1).repeat(-(-count // len(large)), 1, 1, 1)[:count].contiguous()


def measure(device: str) -> dict:
    batch, rounds = (512, 20) if device == "cuda" else (32, 5)
    x, rule = photographs(batch, 256).to(device), Preprocess()
    compiled = torch.compile(augmenting.apply, fullgraph=True) if device == "cuda" else augmenting.apply
    out: dict = {"batch": batch, "device": device}
    for name, augment in CASES.items():
        torch._dynamo.reset()
        plan = draw(augment, 0, 0, range(batch), range(batch))
        there = plan.on(device, (256, 256))
        out[name] = speed(lambda there=there: compiled(x, there, rule), batch, device, rounds)
        out[name]["draws"] = speed(
            lambda augment=augment: draw(augment, 0, 0, range(batch), range(batch)).on(device, (256, 256)),
            batch,
            "cpu",
            5,
        )
        if device == "cuda":
            here = augmenting.apply(x[:32].cpu(), draw(augment, 0, 0, range(32), range(32)))
            same = compiled(x[:32], draw(augment, 0, 0, range(32), range(32)).on(device, (256, 256)))
            out[name]["largest_difference_from_cpu_levels"] = int((here.int() - same.cpu().int()).abs().max())
    small = photographs(4096, 32).permute(0, 3, 1, 2).contiguous().to(device)
    plan = draw(SMALL, 0, 0, range(4096)).on(device, (32, 32))
    out["32 px: shift + flip, bytes"] = speed(lambda: augmenting.apply(small, plan), 4096, device, 20)
    with_draws = speed(
        lambda: augmenting.apply(small, draw(SMALL, 0, 0, range(4096)).on(device, (32, 32))), 4096, device, 20
    )
    out["32 px: shift + flip, bytes, draws included"] = with_draws
    return out


# ------------------------------------------------------------------------------------------------ the picture

CELL, GAP, LEFT = 60, 3, 112
MAGNITUDES = (0, 4, 8, 12, 16, 20)


def rows() -> list[tuple[str, list[torch.Tensor]]]:
    """(name, six pictures) for each line of the grid."""
    pictures = [shapes.draw(i, seed=3)[0] for i in (0, 1, 2, 3, 5, 6)]
    x = [
        torch.from_numpy(np.array(Image.fromarray(p).resize((CELL, CELL), Image.Resampling.BICUBIC))) for p in pictures
    ]
    plain = Augment(size=(CELL, CELL), crop="none", flip=0.0)
    batch = torch.stack(x).permute(0, 3, 1, 2)
    one = batch[:1].expand(6, -1, -1, -1).contiguous()

    def drawn(augment: Augment, images: torch.Tensor, epoch: int = 0) -> list[torch.Tensor]:
        return list(augmenting.apply(images, draw(augment, 1, epoch, range(6), range(6))))

    out = [("pictures", list(batch))]
    out += [("inception crop", drawn(Augment(size=(CELL, CELL)), one))]
    out += [("shift, reflect", drawn(Augment(size=(CELL, CELL), crop="shift", margin=12, edge="reflect"), one))]
    table = augmenting.BIG_VISION_LEVELS
    for name, argument in table.items():
        code = np.full(6, augmenting.OPERATION_CODES[name])
        level = np.array(MAGNITUDES) / 10
        layer = augmenting.encode(code, argument(level, np.ones(6)), (CELL, CELL), np.full((6, 2), 0.5))
        step = replace(draw(replace(plain, rand_augment=(1, 0)), 0, 0, range(6)), layers=(layer,))
        out.append((name, list(augmenting.apply(one, step))))
    out += [("RandAugment(2, 10)", drawn(replace(plain, rand_augment=(2, 10)), batch))]
    out += [("RandAugment(2, 20)", drawn(replace(plain, rand_augment=(2, 20)), batch))]
    out += [("ThreeAugment", drawn(replace(plain, three_augment=True), one, epoch=6))]
    out += [("colour jitter 0.3", drawn(replace(plain, colour_jitter=0.3), one))]
    out += [("erase", drawn(replace(plain, erase=1.0), batch))]
    out += [("MixUp", drawn(replace(plain, mixup=1.0), batch, epoch=6))]
    out += [("CutMix", drawn(replace(plain, cutmix=1.0), batch))]
    return out


def picture(path: Path) -> None:
    """Two columns of rows, names on the left."""
    lines = rows()
    tall = -(-len(lines) // 2)
    wide = LEFT + 6 * (CELL + GAP) + 12
    sheet = Image.new("RGB", (2 * wide, tall * (CELL + GAP) + 18), "white")
    pen = ImageDraw.Draw(sheet)
    for k, (name, cells) in enumerate(lines):
        left, top = (k // tall) * wide, 18 + (k % tall) * (CELL + GAP)
        pen.text((left + 4, top + CELL // 2 - 6), name, fill="black")
        is_table = name in augmenting.BIG_VISION_LEVELS
        for i, cell in enumerate(cells):
            at = (left + LEFT + i * (CELL + GAP), top)
            sheet.paste(Image.fromarray(cell.permute(1, 2, 0).numpy()), at)
            if is_table and (k % tall == 0 or lines[k - 1][0] not in augmenting.BIG_VISION_LEVELS):
                label = f"m={MAGNITUDES[i]}"
                pen.rectangle((at[0], at[1], at[0] + 30, at[1] + 11), fill="white")
                pen.text((at[0] + 2, at[1]), label, fill="black")
    sheet.quantize(256).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    if args.picture:
        picture(args.picture)
        return
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    result = {"schema": "vitreous.benchmark/1", "augment": {device: measure(device) for device in devices}}
    text = json.dumps(result | record(), indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
