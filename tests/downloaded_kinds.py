"""Options of models as people download them, for tests: DINOv3, EVA-02, PE and BEiT made tiny."""

DINOV3_LIKE = {
    "positions": "none", "rotary": "axial", "rotary_places": "image", "rotary_pairs": "halves", "registers": 4,
    "key_bias": False, "layer_scale": 1.0,
}  # fmt: skip
EVA02_LIKE = {
    "rotary": "axial", "rotary_grid": (2, 2), "inner_norm": "both", "activation": "swiglu", "key_bias": False,
    "pool": "gap", "pool_order": "mean-first", "class_token": True,
}  # fmt: skip
PE_LIKE = {
    "rotary": "axial", "rotary_start": 1.0, "rotary_first": "columns", "pool": "map", "pool_tokens": "all",
    "class_token": True, "pool_heads": 4,
}  # fmt: skip
BEIT_LIKE = {"positions": "none", "attention_bias": "table", "key_bias": False, "norm": "branch"}
