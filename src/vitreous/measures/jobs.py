"""A measure to compute for one model, and the folder that keeps finished ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import ExistsError
from vitreous.files import write_json
from vitreous.measures.inspection import save_arrays
from vitreous.measures.measure import Found, Measure, Reading
from vitreous.measures.subject import Subject


@dataclass(eq=False)
class Job:
    """One measure of one model, or of a pair; later what it found.  read: images that were read for it."""

    measure: Measure
    side: int
    found: Found = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    read: int = 0

    @property
    def key(self) -> str:
        return self.measure.name + ("-against" if self.side else "")

    def start(self, subjects: list[Subject]) -> Reading:
        if self.measure.is_pair:
            return self.measure.start(subjects[0], subjects[1])
        return self.measure.start(subjects[self.side], None)

    def taps(self, subjects: list[Subject], side: int) -> list[str]:
        """The taps it reads of the model on that side."""
        if side != self.side and not self.measure.is_pair:
            return []
        return subjects[side].taps(self.measure.taps)


class Store:
    """Finished measures: a file each in OUT/measures, arrays in OUT/arrays. It refuses those of another look."""

    def __init__(self, folder: Path, identity: str, *, force: bool):
        self.folder, self.arrays, self.identity = folder / "measures", folder / "arrays", identity
        marks = {self._read(file).get("identity") for file in self.folder.glob("*.json")}
        if marks - {identity}:
            if not force:
                raise ExistsError(
                    f"{folder} holds a look at another model, set or setting; choose another folder, or give --force"
                )
            for file in self.folder.glob("*.json"):
                file.unlink()
        elif not marks and (folder / "inspection.json").exists() and not force:
            raise ExistsError(f"{folder}/inspection.json exists already; choose another folder, or give --force")

    @staticmethod
    def _read(file: Path) -> dict[str, Any]:
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def load(self, job: Job) -> bool:
        """True if the job was finished before; fills in its numbers."""
        kept = self._read(self.folder / f"{job.key}.json")
        if kept.get("identity") != self.identity:
            return False
        job.found, job.read = kept["found"], kept["read"]
        if kept.get("has_arrays"):
            try:
                with np.load(self.arrays / f"{job.key}.npz", allow_pickle=False) as arrays:
                    job.arrays = {name: arrays[name] for name in arrays.files}
            except (OSError, ValueError):
                return False
        return True

    def save(self, job: Job) -> None:
        if job.arrays:
            save_arrays(self.arrays / f"{job.key}.npz", job.arrays)
        body = {"identity": self.identity, "found": job.found, "read": job.read, "has_arrays": bool(job.arrays)}
        write_json(self.folder / f"{job.key}.json", body, force=True, indent=None)
