"""Where the recorded outputs, weights and data lie, for marks and parameters, which are made before fixtures."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("VITREOUS_SHARED", ROOT.parent / "shared"))
WHY_ABSENT = f"no folder {SHARED}; set VITREOUS_SHARED to where the recorded files lie"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=WHY_ABSENT)
