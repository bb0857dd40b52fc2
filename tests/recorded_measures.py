"""The recorded measures of METHODS C and D, float64."""

import numpy as np
import torch
from shared_files import ROOT


def recorded(file: str) -> dict[str, torch.Tensor]:
    with np.load(ROOT / "tests" / "golden" / "measures" / f"{file}.npz") as found:
        return {name: torch.from_numpy(found[name]) for name in found.files}
