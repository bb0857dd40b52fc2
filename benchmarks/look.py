"""Looking inside: all-pairs CKA against the packages for it, one layer's attention, and a whole look.

    python benchmarks/look.py --packages /tmp/cka --out benchmarks/results/look.json

--packages: a folder made by `pip install --no-deps --target FOLDER torch-cka pytorch-cka==1.1.3`; without it, and
without matplotlib, which both import, they are left out. All times are CPU seconds of one thread, so that other work on
the machine counts little; the whole look is also timed by the wall clock, with as many threads as it takes itself.
Activations: the 73 sub-layers of the real DeiT-Ti on 64 images of imagenet-sample-1000. Prints one JSON object.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitreous
from vitreous.evaluation.inference import at_work, make_batches
from vitreous.machine import record
from vitreous.measures import Likeness
from vitreous.measures.layer_similarity import TAPS
from vitreous.models.model import Model
from vitreous.ranks import Ranks

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
WEIGHTS, DATA = SHARED / "weights" / "deit-tiny", SHARED / "data" / "imagenet-sample-1000.zip"


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def in_turn(works: dict[str, Callable[[], object]], trials: int) -> dict[str, list[float]]:
    """CPU seconds of each, one after the other, so that a busy moment falls on all; the first round warms up."""
    rounds = [{name: cpu_seconds(work) for name, work in works.items()} for _ in range(trials + 1)][1:]
    return {name: [one[name] for one in rounds] for name in works}


def inputs(model: Model, count: int) -> Tensor:
    """The first images, as the model wants them."""
    data = vitreous.images.open(DATA)
    device = torch.device("cpu")
    batches = make_batches(model, data.take(range(count)), device, count, 1, False, Ranks(0, 1))
    with at_work(model, device, "float32") as (normalised, _):
        return normalised(next(iter(batches)).images)


class Recorded(nn.Module):
    """A network whose layers give what was recorded: the packages read it by their own hooks."""

    def __init__(self, layers: dict[str, Tensor]):
        super().__init__()
        self.values = list(layers.values())
        self.layers = nn.ModuleList(nn.Identity() for _ in layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer, value in zip(self.layers, self.values, strict=True):
            layer(value)
        return x


def against_packages(layers: dict[str, Tensor], folder: Path | None, trials: int) -> dict[str, Any]:
    """All pairs of these layers, unbiased, by us and by each package."""

    def ours() -> list[list[float | None]]:
        seen = Likeness()
        seen.add(layers)
        return seen.matrix()

    count = len(next(iter(layers.values())))
    found: dict[str, Any] = {"layers": len(layers), "images": count}
    if folder is None:
        return found | {"cpu_seconds": in_turn({"vitreous": ours}, trials)}
    sys.path.insert(0, str(folder))
    network, names = Recorded(layers), [f"layers.{i}" for i in range(len(layers))]
    images = torch.utils.data.DataLoader(torch.zeros(count, 1, 1), count)  # one batch
    from cka import compute_cka

    def fast() -> Tensor:
        return compute_cka(network, network, images, layers=names, device="cpu", progress=False)[0]

    import torch_cka

    def slow() -> Tensor:
        work = torch_cka.CKA(network, network, "a", "b", names, names)
        with torch.inference_mode():
            work.compare(images)
        return work.hsic_matrix

    exact = torch.tensor(ours(), dtype=torch.float64)
    times = in_turn({"vitreous": ours, "pytorch-cka 1.1.3": fast}, trials)
    own = statistics.median(times["vitreous"])
    times["torch-cka 0.21"] = [cpu_seconds(slow)]
    pairs = zip(times["pytorch-cka 1.1.3"], times["vitreous"], strict=True)
    ratios = {"pytorch-cka 1.1.3": statistics.median(theirs / mine for theirs, mine in pairs)}
    ratios["torch-cka 0.21"] = times["torch-cka 0.21"][0] / own
    difference = float((fast().double() - exact).abs().max())
    return found | {"cpu_seconds": times, "times_ours": ratios, "largest_difference_from_pytorch_cka": difference}


def one_layer(model: Model, x: Tensor, trials: int) -> dict[str, Any]:
    """A forward that also gives one layer's attention, against a plain one; taken in turn."""

    def plain() -> None:
        with torch.inference_mode():
            model(x)

    def tapped() -> None:
        with torch.inference_mode(), vitreous.taps(model, "blocks.5.attention.weights"):
            model(x)

    times = in_turn({"plain": plain, "tapped": tapped}, trials)
    ratio = statistics.median(b / a for a, b in zip(times["plain"], times["tapped"], strict=True))
    return {"images": len(x), "cpu_seconds": times, "ratio": ratio}


def whole(images: int) -> dict[str, Any]:
    """The command itself, from its start to its end, everything written."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        line = ["vitreous", "look", str(WEIGHTS), str(DATA), "--images", str(images), "--out", f"{place}/look"]
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run([sys.executable, "-m", *line], check=True, stdout=subprocess.DEVNULL)
        seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads((Path(place) / "look" / "inspection.json").read_text())
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    body = {"images": images, "wall_seconds": seconds, "cpu_seconds": used, "load_before": load}
    return body | {"measured": list(found["found"]), "skipped": found["skipped"]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--packages", type=Path)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--trials", type=int, default=7)
    arguments.add_argument("--images", type=int, default=512)
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    model = vitreous.load(WEIGHTS)
    x = inputs(model, asked.batch)
    with torch.inference_mode(), vitreous.taps(model, TAPS["vit"]) as layers:
        model(x)
    body: dict[str, Any] = {"benchmark": "look", "machine_was_busy": os.getloadavg()[0] > 1}
    body["cka"] = against_packages(layers, asked.packages, asked.trials)
    body["one_layer_attention"] = one_layer(model, x[:32], asked.trials)
    print(json.dumps(body), file=sys.stderr, flush=True)
    body["whole_look"] = whole(asked.images)
    text = json.dumps(body | {"record": record()}, indent=2)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
