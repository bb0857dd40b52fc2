"""Few-shot against scikit-learn, and feature extraction against a bare forward.   python benchmarks/transfer.py

few-shot    1, 5, 10 and 25 shots × 3 seeds × 1,000 classes on 768 synthetic features, 50,000 test rows: `fewshot`
            against scikit-learn's Ridge in float64 on the same rows, standardised alike, with the constant column and
            the same targets and penalty; both answer all test rows and count. The counts must be equal, cell by cell,
            and the answers of one seed row by row.
extraction  `extract` with the real DeiT-Ti (--shared) over photos of oxford-pets-160 (WebP), decoding included,
            against its bare forward on batches that lie ready; then once more from what was kept.

Peers alternate within one process; a ratio is the median over rounds, with the least and the largest, in wall time and
in the process's CPU time, which other work on the machine touches less. Prints one JSON object. --device cuda puts our
few-shot on a GPU (scikit-learn stays where it is); --toy rehearses all of it in seconds.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitreous
from vitreous.evaluation.few_shot import choose_shots, fewshot
from vitreous.evaluation.inference import choose_batch
from vitreous.evaluation.ridge_regression import BIAS_COLUMN, DEFAULT_L2, STD_EPS, ridge
from vitreous.images.batches.batches import Batches, Loading, Order
from vitreous.machine import record

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    classes: int
    features: int
    pool: int  # rows of a class that shots are drawn from
    test: int
    shots: tuple[int, ...]
    seeds: int
    pictures: int
    rounds: int


FULL = Size(1000, 768, 30, 50_000, (1, 5, 10, 25), 3, 128, 3)
TOY = Size(20, 48, 12, 500, (1, 5), 2, 16, 2)


def rows(size: Size, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds with features of many scales, float32; the centres do not depend on the seed."""
    y = np.arange(count) % size.classes
    centres = np.random.default_rng(99).normal(size=(size.classes, size.features)) * 0.35
    scale = np.exp(np.random.default_rng(98).normal(size=size.features))
    x = (centres[y] + np.random.default_rng(seed).normal(size=(count, size.features))) * scale
    return x.astype(np.float32), y


def by_scikit_learn(x, y, test_x, test_y, size: Size, seeds: range, *, answers: bool = False) -> Any:
    """The same work by sklearn.linear_model.Ridge; counts S R, or the answers of each number of shots."""
    from sklearn.linear_model import Ridge

    def standard(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        constant = np.full((len(values), 1), BIAS_COLUMN)
        return np.concatenate([(values.astype(np.float64) - mean) / std, constant], 1)

    right, said = np.zeros((len(size.shots), len(seeds)), np.int64), []
    for i, shots in enumerate(size.shots):
        for j, seed in enumerate(seeds):
            chosen = choose_shots(y, size.classes, shots, seed)
            own = x[chosen].astype(np.float64)
            mean, std = own.mean(0), own.std(0) + STD_EPS
            targets = 2 * np.eye(size.classes)[y[chosen]] - 1
            fitted = Ridge(alpha=DEFAULT_L2, fit_intercept=False).fit(standard(own, mean, std), targets)
            found = fitted.predict(standard(test_x, mean, std)).argmax(1)
            right[i, j] = (found == test_y).sum()
            said.append(found)
    return said if answers else right


def few_shot(size: Size, device: str) -> dict[str, Any]:
    """Seconds of both for the whole grid."""
    x, y = rows(size, size.classes * size.pool, 0)
    test_x, test_y = rows(size, size.test, 1)

    def ours() -> np.ndarray:
        found = fewshot(x, y, test_x, test_y, size.classes, shots=size.shots, seeds=size.seeds, device=device)
        return found.right[0]

    def theirs() -> np.ndarray:
        return by_scikit_learn(x, y, test_x, test_y, size, range(size.seeds))

    body: dict[str, Any] = {"device": device, "bar_seconds": 3 if device == "cuda" else 60, "bar_ratio": 3.5}
    try:
        import sklearn
    except ImportError:
        ours()
        alone = [clock(ours)[0].wall for _ in range(size.rounds)]
        return body | {"ours_seconds": [round(each, 3) for each in alone], "peer": "scikit-learn is not installed"}
    ours()  # a GPU's libraries load once
    pairs = []
    for _ in range(size.rounds):
        (a, mine), (b, other) = clock(ours), clock(theirs)
        assert (mine == other).all(), f"counts differ: {mine.tolist()} and {other.tolist()}"
        pairs.append((a, b))
    for shots, said in zip(
        size.shots, by_scikit_learn(x, y, test_x, test_y, size, range(1), answers=True), strict=True
    ):
        chosen = choose_shots(y, size.classes, shots, 0)
        assert (ridge(x[chosen], y[chosen], size.classes, device=device).answers(test_x) == said).all()
    return body | {
        "peer": f"scikit-learn {sklearn.__version__} Ridge, float64, CPU",
        **compared(pairs),
        "mean_accuracy": dict(zip(map(str, size.shots), (mine.mean(1) / size.test).round(4).tolist(), strict=True)),
    }


def extraction(size: Size, shared: Path) -> dict[str, Any]:
    """Images a second of `extract`, bare forward beside it in the same rounds, and what is kept read back."""
    weights, photos = shared / "weights/deit-tiny", shared / "data/oxford-pets-160-val.zip"
    if not weights.is_dir() or not photos.is_file():
        return {"left_out": f"no DeiT-Ti or pets in {shared}"}
    model = vitreous.load(weights).eval()
    data = vitreous.images.open(photos, limit=size.pictures)
    batch = choose_batch(model.preprocess.size, torch.device("cpu"))
    loading = Loading(preprocess=model.preprocess, workers=0)
    plain = [part.images for part in Batches(data, Order(batch=batch), loading)]
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (model.preprocess.mean, model.preprocess.std))
    ready = [(images.float() / 255 - mean) / std for images in plain]
    count = sum(map(len, ready))

    @torch.inference_mode()
    def bare() -> None:
        for images in ready:
            model(images)

    def extracted(cache: bool | str) -> Any:
        return vitreous.evaluation.extract(model, data, cache=cache, device="cpu")

    with tempfile.TemporaryDirectory() as folder:
        bare(), extracted(False)
        rounds = range(4 * size.rounds - 1)  # short ones, so that both sides meet the same machine
        pairs = [(clock(lambda n=n: extracted(f"{folder}/{n}"))[0], clock(bare)[0]) for n in rounds]
        kept = [clock(lambda: extracted(f"{folder}/0")) for _ in range(size.rounds)]
    assert all(found.is_kept for _, found in kept)
    return {
        "images": count,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "bar_ratio": 0.95,
        "images_per_second": round(count / statistics.median(a.wall for a, _ in pairs), 1),
        **compared(pairs),
        "from_cache_seconds": round(max(took.wall for took, _ in kept), 3),
    }


@dataclass(frozen=True)
class Took:
    """Seconds: on the wall, and of all threads of this process."""

    wall: float
    cpu: float


def clock(work: Callable[[], Any]) -> tuple[Took, Any]:
    """How long it took, and its result."""
    begin, spent = time.perf_counter(), time.process_time()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return Took(time.perf_counter() - begin, time.process_time() - spent), found


def compared(pairs: list[tuple[Took, Took]]) -> dict[str, Any]:
    """Ours and the peer's, round by round; a ratio above 1 says that ours is faster."""
    return {
        "ours_seconds": [round(a.wall, 3) for a, _ in pairs],
        "peer_seconds": [round(b.wall, 3) for _, b in pairs],
        "ratio_least_median_most": spread([b.wall / a.wall for a, b in pairs]),
        "ours_cpu_seconds": [round(a.cpu, 3) for a, _ in pairs],
        "peer_cpu_seconds": [round(b.cpu, 3) for _, b in pairs],
        "cpu_ratio_least_median_most": spread([b.cpu / a.cpu for a, b in pairs]),
    }


def spread(values: list[float]) -> list[float]:
    return [round(v, 3) for v in (min(values), statistics.median(values), max(values))]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--only", choices=["few-shot", "extraction"])
    words.add_argument("--device", default="cpu", help="cpu or cuda, of our few-shot")
    words.add_argument("--threads", type=int, help="of both sides; by default torch's own")
    words.add_argument("--rounds", type=int, help="that both sides take in turn")
    words.add_argument("--shared", type=Path, default=SHARED)
    words.add_argument("--toy", action="store_true")
    words.add_argument("--out", type=Path)
    asked = words.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    size = TOY if asked.toy else FULL
    size = replace(size, rounds=asked.rounds or size.rounds)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found: dict[str, Any] = {"schema": "vitreous.bench.transfer/1", "size": vars(size), "load_before": load}
    if asked.only != "extraction":
        found["few_shot"] = few_shot(size, asked.device)
    if asked.only != "few-shot":
        found["extraction"] = extraction(size, asked.shared)
    found["record"] = record()
    text = json.dumps(found, indent=2)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
