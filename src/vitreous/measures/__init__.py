"""Inspections: pure functions on arrays, one file each, and the table of those that `look` knows."""

from vitreous.measures.attention import (
    ATTENTION_DISTANCE,
    CLASS,
    ENTROPY,
    LIKENESS,
    attention_distance,
    attention_entropy,
    class_attention,
    head_likeness,
    uniform_distance,
)
from vitreous.measures.attention_map import MAPS, attention_map
from vitreous.measures.filters_and_positions import (
    CHANGE,
    FILTERS,
    POSITIONS,
    filter_components,
    position_likeness,
    position_structure,
)
from vitreous.measures.layer_probes import PROBES
from vitreous.measures.layer_similarity import ACROSS, HEADS_AGAINST_LAYERS, WITHIN
from vitreous.measures.localisation import LOCALISATION, TokenLikeness, own_place
from vitreous.measures.logit_lens import LENS, early_logits
from vitreous.measures.measure import Measure
from vitreous.measures.receptive_field import FIELD, analytic_field, half_mass_radius
from vitreous.measures.residual import SKIP_RATIO, skip_cosine, skip_ratio
from vitreous.measures.rollout import ROLLOUT, rollout
from vitreous.measures.shift import SHIFT, shifted
from vitreous.measures.similarity import Likeness, best_match, cka, hsic, uniformity
from vitreous.measures.skip_removal import REMOVAL, cut_contrast
from vitreous.measures.token_probes import TOKEN_PROBES
from vitreous.registry import Registry

__all__ = [
    "MEASURES",
    "Likeness",
    "TokenLikeness",
    "analytic_field",
    "attention_distance",
    "attention_entropy",
    "attention_map",
    "best_match",
    "cka",
    "class_attention",
    "cut_contrast",
    "early_logits",
    "filter_components",
    "half_mass_radius",
    "head_likeness",
    "hsic",
    "own_place",
    "position_likeness",
    "position_structure",
    "rollout",
    "shifted",
    "skip_cosine",
    "skip_ratio",
    "uniform_distance",
    "uniformity",
]

OUR_MEASURES = [
    MAPS,
    ROLLOUT,
    ATTENTION_DISTANCE,
    ENTROPY,
    CLASS,
    LIKENESS,
    FILTERS,
    POSITIONS,
    CHANGE,
    WITHIN,
    ACROSS,
    HEADS_AGAINST_LAYERS,
    SKIP_RATIO,
    LOCALISATION,
    PROBES,
    TOKEN_PROBES,
    LENS,
    FIELD,
    REMOVAL,
    SHIFT,
]
MEASURES: Registry[Measure] = Registry("measures", {measure.name: measure for measure in OUR_MEASURES})
