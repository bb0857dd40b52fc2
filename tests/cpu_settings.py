"""The suite under each way in which a CPU may compute.   python tests/cpu_settings.py [--only NAME …] [pytest's words]

Kernels of torch, oneDNN, MKL and OpenBLAS are chosen by the CPU and the number of threads; these variables choose for
them. So one machine shows what a stranger's would: a test that passes under one setting alone rests on rounding.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {
    "as it is": {},
    "torch without vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "torch avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "torch avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "oneDNN avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL sse2": {"MKL_CBWR": "COMPATIBLE"},
    "OpenBLAS haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS zen": {"OPENBLAS_CORETYPE": "Zen"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "all at once": {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "2"},
}
NEEDS = {"torch avx2": "avx2", "torch avx512": "avx512f", "OpenBLAS haswell": "avx2", "OpenBLAS zen": "avx2"}
PYTEST = ["-m", "pytest", "-q", "-rfE", "--tb=short", "-n", "2", "--dist", "worksteal", "-m", "not slow"]
SAME_DRAWS = ["--hypothesis-profile=quick", "--hypothesis-seed=0"]  # so that settings differ in rounding alone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=SETTINGS, help="this setting; again for more")
    asked, words = parser.parse_known_args()
    has = cpu_flags()
    failed: dict[str, list[str]] = {}
    print(f"{'setting':<24}{'minutes':>8}  outcome", flush=True)
    for name in asked.only or SETTINGS:
        if name in NEEDS and has and NEEDS[name] not in has:
            print(f"{name:<24}{'–':>8}  this CPU has no {NEEDS[name]}", flush=True)
            continue
        minutes, outcome, failed[name] = run(SETTINGS[name], words)
        print(f"{name:<24}{minutes:>8.1f}  {outcome}", flush=True)
    for name, tests in failed.items():
        for test in tests:
            print(f"{name}: {test}")
    return 1 if any(failed.values()) else 0


def run(setting: dict[str, str], words: list[str]) -> tuple[float, str, list[str]]:
    """Minutes, pytest's last line, and the tests that failed. What broke as a whole counts as failed too."""
    mine = {variable for each in SETTINGS.values() for variable in each}
    around = {name: value for name, value in os.environ.items() if name not in mine}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *PYTEST, *SAME_DRAWS, *words],
        cwd=ROOT,
        env=around | {"OMP_NUM_THREADS": "1"} | setting,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    outcome = lines[-1].strip("= ") if lines else done.stderr.strip()[-200:]
    failed = re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        failed = [f"pytest ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}"]
    return (time.monotonic() - began) / 60, outcome, failed


def cpu_flags() -> set[str]:
    """What the CPU can do; nothing where the system does not say."""
    about = Path("/proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", about.read_text(), re.MULTILINE) if about.exists() else None
    return set(found[1].split()) if found else set()


if __name__ == "__main__":
    sys.exit(main())
