"""The demo does what it says, anywhere."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import vitreous


def test_the_recorded_model_knows_shapes_and_looks_at_them(tmp_path):
    result = vitreous.demo(tmp_path / "map.svg")
    assert result.right >= 0.85 * result.seen
    assert result.on_the_shape > 2 * result.shape_area  # attention by chance would fall there in proportion
    assert result.round_trip == 0
    assert len(result.models) == len(vitreous.models.catalog.names())
    ElementTree.parse(tmp_path / "map.svg")
    assert f"{result.right} of {result.seen}" in str(result)


def test_the_command_runs_from_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vitreous", "demo", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ,
        check=True,
    )
    assert json.loads(done.stdout)["schema"] == "vitreous.demo/1"
    assert (tmp_path / "vitreous-demo.svg").is_file()
