"""How fast our ViT is against its peers, as ratios from one run.   python benchmarks/model_speed.py [--out FILE]

CPU: the forward pass of Ti/16 and B/16 against transformers' (its default attention), float32, one thread, batch 1 and
8; and one layer's attention read through a tap against a plain forward. CUDA, where there is one: a training step (bf16
autocast, float32 weights, compiled, AdamW) against timm's compiled the same way with the same GELU; and the tap again.
Peers alternate within one process; a ratio is the median over rounds, with the 10th and 90th percentile.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import vitreous
from vitreous.machine import record

CPU_ROUNDS = {"Ti/16": 20, "B/16": 5}
TRAINING = {
    "S/16": (512, "vit_small_patch16_224"),
    "B/16": (512, "vit_base_patch16_224"),
    "L/16": (256, "vit_large_patch16_224"),
}


def spread(values: list[float]) -> list[float]:
    """10th, 50th and 90th percentile."""
    if len(values) < 2:
        return values * 3
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return [round(cuts[0], 4), round(statistics.median(values), 4), round(cuts[-1], 4)]


def compare(
    ours: Callable[[], object], theirs: Callable[[], object], clock: Callable[[Callable], float], rounds: int
) -> dict:
    """theirs / ours in time, each round in turn: above 1 we are faster."""
    ours(), theirs()
    pairs = [(clock(ours), clock(theirs)) for _ in range(rounds)]
    return {
        "ratio_10_50_90": spread([b / a for a, b in pairs]),
        "ours_seconds": statistics.median(a for a, _ in pairs),
        "theirs_seconds": statistics.median(b for _, b in pairs),
        "rounds": rounds,
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process: repeats on a busy machine, where wall time does not."""
    start = time.process_time()
    work()
    return time.process_time() - start


def cuda_seconds(steps: int) -> Callable[[Callable], float]:
    def clock(work: Callable[[], object]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(steps):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / steps

    return clock


def forward_on_the_cpu() -> dict:
    import transformers

    torch.set_num_threads(1)
    out = {}
    for name, rounds in CPU_ROUNDS.items():
        ours = vitreous.build(name, activation="gelu", seed=0).eval()
        e = ours.config.encoder
        sizes = {
            "hidden_size": e.width,
            "num_hidden_layers": e.depth,
            "num_attention_heads": e.heads,
            "intermediate_size": e.mlp,
        }
        theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_labels=1000)).eval()
        for batch in (1, 8):
            x = torch.randn(batch, 3, 224, 224)
            with torch.inference_mode():
                out[f"{name} batch {batch}"] = compare(partial(ours, x), partial(theirs, x), cpu_seconds, rounds)
    return out


def tap_cost(device: str, clock: Callable[[Callable], float], batch: int, rounds: int) -> dict:
    """One layer's attention read, against a plain forward of the same eager model."""
    model = vitreous.build("B/16", seed=0).eval().to(device)
    x = torch.randn(batch, 3, 224, 224, device=device)

    def tapped() -> None:
        with vitreous.taps(model, "blocks.6.attention.weights"):
            model(x)

    with torch.inference_mode():
        found = compare(lambda: model(x), tapped, clock, rounds)
    return {
        "batch": batch,
        "cost_10_50_90": found["ratio_10_50_90"],
        "plain_seconds": found["ours_seconds"],
        "rounds": rounds,
    }


def training_step(model: torch.nn.Module, batch: int) -> Callable[[], None]:
    model = model.cuda().train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def training_on_cuda(rounds: int = 7) -> dict:
    import timm

    torch.set_float32_matmul_precision("high")
    out = {}
    for name, (batch, theirs) in TRAINING.items():
        ours_step = training_step(vitreous.build(name, activation="gelu", seed=0), batch)
        theirs_step = training_step(timm.create_model(theirs), batch)
        for _ in range(5):
            ours_step(), theirs_step()
        found = compare(ours_step, theirs_step, cuda_seconds(10), rounds)
        rates = {f"{who}_images_per_second": round(batch / found[f"{who}_seconds"]) for who in ("ours", "theirs")}
        out[name] = {"batch": batch, **rates, **found}
        print(name, out[name], flush=True)
        del ours_step, theirs_step
        torch.compiler.reset()
        torch.cuda.empty_cache()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--only", choices=("cpu", "cuda"))
    args = parser.parse_args()
    if args.only == "cpu":
        torch.set_num_threads(1)  # as the record should say
    result: dict = {"benchmark": "model_speed", **record()}
    if args.only != "cuda":
        result["cpu_forward_against_transformers"] = forward_on_the_cpu()
        result["cpu_one_attention_tapped"] = tap_cost("cpu", cpu_seconds, 1, 7)
    if torch.cuda.is_available() and args.only != "cpu":
        result["cuda_training_against_timm"] = training_on_cuda()
        result["cuda_one_attention_tapped"] = tap_cost("cuda", cuda_seconds(10), 64, 10)
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
