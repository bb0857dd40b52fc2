"""Tiny real pictures, each unlike the others, and the folders and archives they lie in."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def photo(number: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """A smooth coloured scene that depends on its number alone; width, height."""
    scene = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(scene).resize(size, Image.Resampling.BICUBIC)


def encoded(number: int, format: str = "PNG", **how) -> bytes:
    file = io.BytesIO()
    photo(number).save(file, format, **how)
    return file.getvalue()


def class_folders(root: Path, counts: dict[str, int], start: int = 0) -> Path:
    """PNG pictures: {"train/cat": 3} makes train/cat/0.png … 2.png; every picture of a set is another."""
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (root / folder / f"{i}.png").write_bytes(encoded(start))
            start += 1
    return root


def zip_of(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    return path


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return path


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()
