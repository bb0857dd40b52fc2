"""All experiments by name, in the order of the ledger's families."""

from vitreous.papers.experiment import Experiment
from vitreous.papers.experiments import positions, shots, transfer
from vitreous.registry import Registry

OUR_EXPERIMENTS = [positions.EXPERIMENT, *transfer.TRANSFER_EXPERIMENTS, shots.EXPERIMENT]
EXPERIMENTS: Registry[Experiment] = Registry("experiments", {one.name: one for one in OUR_EXPERIMENTS})
