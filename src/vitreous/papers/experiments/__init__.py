"""All experiments by name, in the order of the ledger's families."""

from vitreous.papers.experiment import Experiment
from vitreous.papers.experiments import data, data_inside, optimizer, positions, scaling, size, speed
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
]
EXPERIMENTS: Registry[Experiment] = Registry("experiments", {one.name: one for one in OUR_EXPERIMENTS})
