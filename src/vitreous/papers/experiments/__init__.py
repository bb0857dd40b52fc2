"""All experiments by name, in the order of the ledger's families."""

from vitreous.papers.experiment import Experiment
from vitreous.papers.experiments import data, data_inside, positions
from vitreous.registry import Registry

OUR_EXPERIMENTS = [data.EXPERIMENT, data_inside.EXPERIMENT, positions.EXPERIMENT]
EXPERIMENTS: Registry[Experiment] = Registry("experiments", {one.name: one for one in OUR_EXPERIMENTS})
