"""All experiments by name, in the order of the ledger's families."""

from vitreous.papers.experiment import Experiment
from vitreous.papers.experiments import (
    attention,
    data,
    data_inside,
    embeddings,
    optimizer,
    place,
    positions,
    receptive_field,
    scaling,
    size,
    skips,
    speed,
    uniformity,
)
from vitreous.registry import Registry

OUR_EXPERIMENTS = [
    data.EXPERIMENT,
    data_inside.EXPERIMENT,
    size.SIZE,
    size.SIZE_SMALL,
    size.COMPUTE,
    optimizer.EXPERIMENT,
    scaling.EXPERIMENT,
    speed.EXPERIMENT,
    positions.EXPERIMENT,
    embeddings.EXPERIMENT,
    attention.EXPERIMENT,
    attention.LOCAL_HEADS,
    skips.EXPERIMENT,
    uniformity.EXPERIMENT,
    place.EXPERIMENT,
    place.READOUTS,
    receptive_field.EXPERIMENT,
]
EXPERIMENTS: Registry[Experiment] = Registry("experiments", {one.name: one for one in OUR_EXPERIMENTS})
