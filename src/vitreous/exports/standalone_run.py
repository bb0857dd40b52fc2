"""Run this exported model on images: python run.py photo.jpg [more.png] [--top 5] [--json]

Needs numpy, Pillow and the package that `load` imports. Resize, crop and normalise are inside the exported file, so the
image itself goes in. An image that cannot be read is skipped with a line, and the exit code is 1.
"""

import argparse
import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

EXPORT_FOLDER = Path(__file__).resolve().parent
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")  # decoding them starts no other program
PIXEL_LIMIT = 120_000_000


class SkippedImage(Exception):
    """Why an image cannot be read, and what to do."""


def read(path: str, channels: int) -> np.ndarray:
    """Decode an image: upright, transparency on white.  H W C, uint8."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise SkippedImage("it is not a regular file; name an image")
        return decode(path, channels)
    except UnidentifiedImageError:
        raise SkippedImage(f"it is not an image; give {', '.join(IMAGE_FORMATS)}") from None
    except OSError as error:
        raise SkippedImage(f"{error.strerror or 'it is broken'}; copy it again") from None
    except SkippedImage:
        raise
    except Exception:  # a broken file can make Pillow raise anything
        raise SkippedImage("it is broken; copy it again") from None


def decode(path: str, channels: int) -> np.ndarray:
    Image.init()
    opened = Image.open(path, formats=[format for format in IMAGE_FORMATS if format in Image.OPEN])
    if opened.width * opened.height > PIXEL_LIMIT:
        raise SkippedImage(f"it has more than {PIXEL_LIMIT // 10**6} megapixels; shrink it")
    image = ImageOps.exif_transpose(opened)
    if image.mode.startswith(("I", "F")):
        raise SkippedImage("it has more than 8 bits a channel; save it as 8-bit PNG or JPEG")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("RGB")
    pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    return pixels[:, :, None] if channels == 1 else pixels


def shown(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)


def load(path: str) -> Any:
    """A function from an image to all outputs of the image form; export puts the target's own here."""
    raise NotImplementedError


def answer(run: Any, image: np.ndarray, about: dict[str, Any], labels: list[str], top: int) -> dict[str, Any]:
    if about["answers"] == "features":  # an encoder without a head
        return {"features": [float(value) for value in run(image)[0]]}
    probabilities, score, *_ = run(image)
    best = np.argsort(-probabilities, kind="stable")[:top]
    rows = [{"label": labels[k], "probability": float(probabilities[k])} for k in best]
    threshold = about["threshold"]
    is_unlike = threshold is not None and float(score) < threshold
    if is_unlike:
        named = []
    elif about["answers"] == "several":
        named = [row["label"] for row in rows if row["probability"] >= 0.5]
    else:
        named = [rows[0]["label"]]
    sure_from = (about.get("track_record") or {}).get("sure_from")
    is_unsure = not is_unlike and sure_from is not None and rows[0]["probability"] < sure_from
    return {"said": named, "is_unlike": is_unlike, "is_unsure": is_unsure, "score": float(score), "top": rows}


def main() -> int:
    """The exit code: 1 if an image was skipped."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("images", nargs="+")
    arguments.add_argument("--top", type=int, default=5)
    arguments.add_argument("--json", action="store_true", help="one object a line")
    asked = arguments.parse_args()
    about = json.loads((EXPORT_FOLDER / "export.json").read_text(encoding="utf-8"))
    has_labels = about["answers"] != "features"
    labels = (EXPORT_FOLDER / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1] if has_labels else []
    run = load(str(EXPORT_FOLDER / about["files"]["image"]))
    skipped = 0
    for path in asked.images:
        try:
            image = read(path, about["channels"])
        except SkippedImage as error:
            skipped += 1
            print(shown(f"{path}: skipped: {error}"), file=sys.stderr, flush=True)
            if asked.json:
                print(json.dumps({"name": path, "error": str(error)}), flush=True)
            continue
        found = answer(run, image, about, labels, asked.top)
        if asked.json:
            print(json.dumps({"name": path, **found}), flush=True)
        elif not has_labels:
            few = " ".join(f"{value:.4f}" for value in found["features"][: asked.top])
            print(shown(f"{path}: {len(found['features'])} features, {few} … (all: --json)"), flush=True)
        else:
            rows = ", ".join(f"{row['label']} {100 * row['probability']:.1f} %" for row in found["top"])
            nearest = f"none of these (nearest: {found['top'][0]['label']})"  # its confidence would contradict it
            said = f"{'unsure: ' * found['is_unsure']}{rows}" if found["said"] else nearest
            print(shown(f"{path}: {said}"), flush=True)
    return min(skipped, 1)


if __name__ == "__main__":
    sys.exit(main())
