"""All experiments by name, in the order of the ledger's families."""

from vitreous.papers.experiment import Experiment
from vitreous.papers.experiments import (
    attention,
    embeddings,
    language,
    place,
    positions,
    receptive_field,
    shift,
    skips,
    uniformity,
)
from vitreous.registry import Registry

OUR_EXPERIMENTS = [
    positions.EXPERIMENT,
    embeddings.EXPERIMENT,
    attention.EXPERIMENT,
    attention.LOCAL_HEADS,
    skips.EXPERIMENT,
    uniformity.EXPERIMENT,
    place.EXPERIMENT,
    place.READOUTS,
    receptive_field.EXPERIMENT,
    shift.EXPERIMENT,
    language.EXPERIMENT,
    language.SEQUENCE,
]
EXPERIMENTS: Registry[Experiment] = Registry("experiments", {one.name: one for one in OUR_EXPERIMENTS})
