"""The vision transformers of transformers: a folder with config.json, or the file alone (rows: families.py)."""

from vitreous.weights.formats import Format
from vitreous.weights.huggingface.families import is_ignored
from vitreous.weights.huggingface.reading import draft, recognises
from vitreous.weights.huggingface.writing import refuses, rules, to_hold, write

HUGGINGFACE_FORMAT = Format(
    name="huggingface",
    holds="ViT, DeiT, DINOv2, DINOv3, BEiT, I-JEPA, CLIP and SigLIP vision of transformers, a folder with config.json",
    recognises=recognises,
    draft=draft,
    rules=rules,
    refuses=refuses,
    to_hold=to_hold,
    write=write,
    is_folder=True,
    names_architectures=True,
    ignores=is_ignored,
)
