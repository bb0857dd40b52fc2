"""Doctor tells the truth about this machine, and each warning names its cure."""

import json
import os
import pickle
import platform
import shlex
import subprocess
import sys
import time
import tomllib

import pytest
import torch
from shared_files import ROOT

import vitreous
from vitreous import machine
from vitreous.errors import ConfigError, MissingExtraError
from vitreous.weights import starter


def warnings(**changes) -> list[str]:
    sane = {"torch": "2.13.0", "is_cuda_build": False, "has_gpu": False, "omp_wait_policy": "PASSIVE"}
    return list(machine._warnings(**sane | changes))


def test_doctor_agrees_with_torch_and_python():
    seen = vitreous.doctor()
    assert (seen.torch, seen.python, seen.vitreous) == (
        torch.__version__,
        platform.python_version(),
        vitreous.__version__,
    )
    assert seen.threads == torch.get_num_threads()
    assert 1 <= seen.cores <= os.cpu_count()
    assert seen.devices[-1].kind == "cpu"
    assert torch.backends.cpu.get_cpu_capability() in seen.devices[-1].name


def test_doctor_goes_to_json_text_and_html():
    seen = vitreous.doctor()
    assert json.loads(json.dumps(seen.to_json()))["torch"] == seen.torch
    assert all(text in str(seen) for _, text in seen.rows())
    assert "\n" not in seen._repr_html_()
    assert seen._repr_html_().count("<tr>") == len(list(seen.rows()))


def test_doctor_knows_every_extra_and_how_to_get_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {extra.name: extra for extra in vitreous.doctor().extras}
    assert set(extras) == set(project["optional-dependencies"]) - {"all"}
    assert extras["dev"].missing == ()
    assert shlex.split(extras["plot"].install) == ["pip", "install", "vitreous[plot]"]


def test_doctor_names_the_starter_and_holds_it_against_its_card():
    assert machine.STARTER == starter.STARTER_FILE
    seen = vitreous.doctor()
    size = starter.STARTER_FILE.stat().st_size
    assert seen.to_json()["starter"] == {"bytes": size, "is_whole": True}
    assert ("starter", f"{size / 1e6:.1f} MB, digest OK") in list(seen.rows())


def test_a_starter_that_is_broken_or_absent_is_told(tmp_path):
    file = tmp_path / "starter.safetensors"
    assert str(machine._starter(file)).startswith("not in this package; fit begins from scratch")
    file.write_bytes(starter.STARTER_FILE.read_bytes()[:-1])
    for card in ("", "[]", '{"packed": {}}', starter.STARTER_CARD.read_text()):
        file.with_suffix(".json").write_text(card)
        assert "MB, broken: its digest is not that of its card; install vitreous again" in str(machine._starter(file))


def test_a_sane_machine_has_no_warnings():
    assert warnings() == []
    assert warnings(is_cuda_build=True, has_gpu=True) == []


def test_a_cuda_build_without_a_gpu_is_told():
    (warning,) = warnings(is_cuda_build=True)
    assert warning.startswith("torch 2.13.0 is a CUDA build, and no GPU answers; check the driver")


@pytest.mark.parametrize("policy", [None, "ACTIVE"])
def test_spinning_threads_are_told(policy):
    (warning,) = warnings(omp_wait_policy=policy)
    assert "set OMP_WAIT_POLICY=PASSIVE" in warning


@pytest.mark.parametrize(
    ("version", "library", "told"),
    [
        ("0.28.0", b"needs libtorch_cpu.so", None),
        ("0.28.0", b"needs libtorch_cuda.so", "torchvision 0.28.0 wants CUDA, which torch 2.13.0 has not"),
        ("0.29.2", b"needs libtorch_cpu.so", "torchvision 0.29.2 does not fit torch 2.13.0 (that needs 0.28)"),
    ],
)
def test_a_torchvision_that_will_not_import_is_told_without_importing_it(tmp_path, monkeypatch, version, library, told):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (tmp_path / "torchvision" / "_C.so").write_bytes(library)
    (tmp_path / f"torchvision-{version}.dist-info").mkdir()
    (tmp_path / f"torchvision-{version}.dist-info" / "METADATA").write_text(f"Name: torchvision\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = warnings()
    assert [w.partition(", and breaks")[0] for w in found] == ([told] if told else [])
    assert all(w.endswith("pip uninstall torchvision") for w in found)


def test_waiting_threads_sleep_unless_the_user_chose_otherwise():
    program = "import os, sys; {} import vitreous; print(os.environ.get('OMP_WAIT_POLICY'))"

    def policy(first: str = "", **environment: str) -> str:
        clean = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | environment
        words = [sys.executable, "-c", program.format(first)]
        return subprocess.run(words, env=clean, capture_output=True, text=True, check=True).stdout.strip()

    assert policy() == "PASSIVE"
    assert policy(OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"
    assert policy(first="import torch;") == "None"  # too late to matter, so not claimed


def test_a_process_has_run_since_it_began():
    program = "import time; time.sleep(0.3); from vitreous.machine import process_seconds; print(process_seconds())"
    began = time.monotonic()
    told = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert 0.3 <= told + 0.02 <= time.monotonic() - began + 0.04  # the kernel counts in hundredths


def test_a_record_names_versions_hardware_commit_and_command():
    record = json.loads(json.dumps(machine.record()))
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["threads"] == torch.get_num_threads()
    assert not record["command"][0].startswith("/")
    assert set(record) == {"command", "versions", "hardware", "commit"}


def test_the_commit_is_that_of_the_source_and_says_when_it_is_dirty(tmp_path):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        words = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    source, stranger = tmp_path / "machine.py", tmp_path / "installed.py"
    source.write_text("one")
    stranger.write_text("copy")
    assert machine._commit(source) is None
    git("init", "-q")
    git("add", "machine.py")
    git("commit", "-qm", "first")
    machine._commit.cache_clear()
    assert machine._commit(source) == git("rev-parse", "HEAD")
    assert machine._commit(stranger) is None
    source.write_text("two")
    machine._commit.cache_clear()
    assert machine._commit(source) == git("rev-parse", "HEAD") + "-dirty"


def test_a_missing_extra_names_the_command_and_survives_pickling():
    error = MissingExtraError("hub", "hf:OWNER/NAME")
    assert str(error) == "hf:OWNER/NAME needs the extra 'hub'; pip install 'vitreous[hub]'"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_device_is_the_one_asked_for_else_the_models_own():
    assert machine.choose_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        assert machine.choose_device() == machine.choose_device(near=torch.nn.Linear(1, 1)) == torch.device("cpu")
    assert machine.choose_device(near=torch.nn.Linear(1, 1, device="meta")).type == "meta"
    with pytest.raises(ConfigError, match="gpu is not a device; say cpu, cuda or mps"):
        machine.choose_device("gpu", near=torch.nn.Identity())
