"""`vitreous serve` against a naive FastAPI app on the same model.   python benchmarks/serve.py [--toy] [--out FILE]

The naive app is what one writes first: an async route that decodes, resizes and runs the model on the event loop. It is
measured three times: with its defaults; with OMP_WAIT_POLICY=PASSIVE, which importing vitreous sets for ours, so
that torch's threads do not spin while clients want the core; and with one thread. Each server is a process of its own;
32 clients on loopback send JPEG photographs, the servers by turns, round after round; the 503s of a full queue would
count as failures. Ratios are medians over rounds: requests/s (ours / naive, more is better), p99 (ours / naive, less is
better), and requests per CPU second of the server, which a busy machine changes least. Where there is a GPU, all of
them use it, and `batching` is measured too: 32 threads that ask for one image each, through the batcher and one by
one. --batching measures that alone, without the extra serve. --int8 measures one more of ours in the same rounds: the
model exported by OpenVINO in int8 and served from its folder. load_before is the machine's load before
it began, and others_busy how many cores other work kept busy during the rounds: both should be near 0.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
from PIL import Image

import vitreous
from vitreous.machine import record

CLIENTS = 32
NAIVE = """
import io, sys
import torch, uvicorn
from fastapi import FastAPI, Request
from PIL import Image
import vitreous
from vitreous.images.pixels.preprocess import apply

if sys.argv[3] != "default":
    torch.set_num_threads(int(sys.argv[3]))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = vitreous.load(sys.argv[1]).eval().to(device)
app = FastAPI()

@app.post("/api/predict")
async def predict(request: Request):
    image = Image.open(io.BytesIO(await request.body())).convert("RGB")
    with torch.inference_mode():
        shares = model(apply(image, model.preprocess)[None].to(device))[0].softmax(-1)
    best = shares.topk(5)
    return {"top": [{"class": int(k), "probability": float(p)} for p, k in zip(*best)]}

@app.get("/healthz")
async def healthz():
    return {"status": "ok"}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


def photographs(count: int, side: int) -> list[bytes]:
    """Files as cameras write them: smooth scenes with some noise."""
    import io

    found = []
    for i in range(count):
        rng = np.random.default_rng(i)
        scene = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((side, side * 3 // 4), 3)
        noisy = np.asarray(scene, np.int16) + rng.integers(-12, 13, (side * 3 // 4, side, 3))
        stream = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
        found.append(stream.getvalue())
    return found


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def running(name: str, command: list[str], port: int, policy: str | None):
    """A server process; yields (port, how many CPU seconds it has used)."""
    env = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    env |= {"OMP_WAIT_POLICY": policy} if policy else {}
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, env=env)
    try:
        end = time.monotonic() + 120
        while not answers(port):
            assert process.poll() is None, f"{name} ended"
            assert time.monotonic() < end, f"{name} never answered"
            time.sleep(0.2)
        yield port, lambda: cpu_seconds(process.pid)
    finally:
        process.terminate()
        process.wait(40)


def answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(port: int, seconds: float, clients: int, files: list[bytes]) -> tuple[list[float], int, float]:
    """Seconds of each answered request, failures, and how long it took until all clients were done."""
    took: list[float] = []
    failed = [0] * clients
    start = time.monotonic()

    def client(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        turn = number
        while time.monotonic() - start < seconds:
            begin = time.monotonic()
            connection.request("POST", "/api/predict", files[turn % len(files)], {"Content-Type": "image/jpeg"})
            reply = connection.getresponse()
            reply.read()
            turn += 1
            if reply.status == 200:
                took.append(time.monotonic() - begin)
            else:
                failed[number] += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took, sum(failed), time.monotonic() - start


def busy_seconds() -> float:
    """CPU seconds of everybody since the machine started."""
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def measure(
    servers: dict, rounds: int, seconds: float, clients: int, files: list[bytes]
) -> tuple[dict[str, list[dict]], float]:
    """A row for each round of each server, and how many cores others kept busy meanwhile."""
    found: dict[str, list[dict]] = {name: [] for name in servers}
    for port, _ in servers.values():
        load(port, min(1.0, seconds), 4, files)  # warm

    def others() -> float:
        return busy_seconds() - time.process_time() - sum(used() for _, used in servers.values())

    start, before_all = time.monotonic(), others()
    for _ in range(rounds):
        for name, (port, used) in servers.items():
            before = used()
            took, failed, wall = load(port, seconds, clients, files)
            cpu = used() - before
            row = {"requests": len(took), "failed": failed, "per_second": len(took) / wall}
            row |= {"p50": float(np.quantile(took, 0.5)), "p99": float(np.quantile(took, 0.99))}
            found[name].append(row | {"per_cpu_second": len(took) / max(cpu, 1e-9)})
    return found, max(others() - before_all, 0.0) / (time.monotonic() - start)


def ratios(rows: dict[str, list[dict]], theirs: str, own: str = "ours") -> dict[str, float]:
    def ratio(what: str) -> float:
        pairs = zip(rows[own], rows[theirs], strict=True)
        return round(statistics.median(ours[what] / their[what] for ours, their in pairs), 3)

    return {what: ratio(what) for what in ("per_second", "p50", "p99", "per_cpu_second")}


def export_int8(path: Path, folder: Path) -> None:
    """A few images calibrate: the weights are random, and speed does not depend on what they say."""
    data = vitreous.images.open("fashion", limit=32)
    vitreous.export(vitreous.load(path), folder, to="openvino", int8=True, data=data, images=8, anyway=True)


def batching(name: str, seconds: float) -> dict:
    """Images/s of 32 threads that ask for one image at a time: in common batches, and one after the other."""
    import torch

    from vitreous.machine import choose_device
    from vitreous.server.engine import Engine
    from vitreous.server.queue import Batcher

    model = vitreous.build(name, seed=0).eval().requires_grad_(False)
    device = choose_device(near=model)
    model.to(device)
    rule = model.preprocess
    images = np.random.default_rng(0).integers(0, 256, (64, *rule.size, 3), dtype=np.uint8)
    batcher = Batcher(Engine(model, device))
    lock = threading.Lock()

    def rate(ask) -> float:
        done = [0] * CLIENTS
        start = time.monotonic()

        def client(number: int) -> None:
            while time.monotonic() - start < seconds:
                ask([images[(number + done[number]) % len(images)]])
                done[number] += 1

        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done) / (time.monotonic() - start)

    with Engine(model, device).at_work() as single:

        def one_by_one(seen: list) -> np.ndarray:
            with lock:
                return single.logits(seen)

        np.testing.assert_allclose(batcher.logits(list(images[:4])), one_by_one(list(images[:4])), rtol=0.05, atol=0.05)
        pairs = [(rate(batcher.logits), rate(one_by_one)) for _ in range(3)]
    batcher.close()
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "model": name,
        "batched_to_one_by_one": round(statistics.median(a / b for a, b in pairs), 3),
        "images_per_second": [{"batched": a, "one_by_one": b} for a, b in pairs],
        "images_per_batch": round(batcher.images / batcher.batches, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="a tiny model and half a second: does it run?")
    parser.add_argument("--batching", action="store_true", help="that alone")
    parser.add_argument("--model", default="Ti/16", help="a name of the catalog")
    parser.add_argument("--runtime", default="torch", help="what ours answers with: torch, onnx or openvino")
    parser.add_argument("--int8", action="store_true", help="one more of ours, from a folder of int8 for OpenVINO")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each round, for each server")
    parser.add_argument("--out", help="write the JSON there too")
    args = parser.parse_args()
    clients, side, load_before = CLIENTS, 500, os.getloadavg()[0]
    if args.toy:
        args.model, args.rounds, args.seconds, clients, side = "Ti/16 depth=1", 1, 0.5, 4, 100
    if args.batching:
        show({"benchmark": "serve", "batching": batching(args.model, args.seconds), **record()}, args.out)
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "model.safetensors"
        vitreous.save(vitreous.build(args.model, seed=0), path)
        script = Path(folder) / "naive.py"
        script.write_text(NAIVE)
        servers = {}
        ours = ["-m", "vitreous", "serve", str(path), "--port", "PORT", "--runtime", args.runtime]
        exported = Path(folder) / "int8"
        if args.int8:
            export_int8(path, exported)
        ours_int8 = ["-m", "vitreous", "serve", str(exported), "--port", "PORT", "--anyway"]
        for name, command, policy in (
            ("ours", ours, None),
            *([("ours_int8", ours_int8, None)] if args.int8 else []),
            ("naive", [str(script), str(path), "PORT", "default"], None),
            ("naive_passive", [str(script), str(path), "PORT", "default"], "PASSIVE"),
            ("naive_one_thread", [str(script), str(path), "PORT", "1"], "PASSIVE"),
        ):
            port = free_port()
            words = [str(port) if word == "PORT" else word for word in command]
            servers[name] = stack.enter_context(running(name, words, port, policy))
        rows, others_busy = measure(servers, args.rounds, args.seconds, clients, photographs(16, side))
    theirs = ("naive", "naive_passive", "naive_one_thread")
    int8 = {f"int8_to_{name}": ratios(rows, name, "ours_int8") for name in ("ours", *theirs)} if args.int8 else {}
    result = {
        "benchmark": "serve",
        "model": args.model,
        "runtime": args.runtime,
        "clients": clients,
        "rounds": args.rounds,
        "seconds": args.seconds,
        "load_before": round(load_before, 2),
        "others_busy": round(others_busy, 2),
        **{f"ours_to_{name}": ratios(rows, name) for name in theirs},
        **int8,
        "failed": {name: sum(row["failed"] for row in each) for name, each in rows.items()},
        "rows": rows,
        "batching": batching(args.model, args.seconds) if has_gpu() else None,
        **record(),
    }
    show(result, args.out)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def show(result: dict, out: str | None) -> None:
    text = json.dumps(result, indent=1)
    print(text)
    if out:
        Path(out).write_text(text + "\n")


if __name__ == "__main__":
    main()
