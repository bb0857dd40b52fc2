"""All experiments by name, in the order of the ledger's families."""

from vitreous.papers.experiment import Experiment
from vitreous.papers.experiments import ablations, position_patterns, positions, readouts
from vitreous.registry import Registry

OUR_EXPERIMENTS = [
    positions.EXPERIMENT,
    position_patterns.SIZES,
    position_patterns.PATTERNS,
    position_patterns.POSITION_STARTS,
    readouts.RATES,
    readouts.POOLS_COMPARED,
    readouts.CLASS_TOKEN,
    readouts.TOKENS,
    ablations.NORM_PLACE,
    ablations.SWITCHED,
    ablations.SKIPS,
    ablations.NEIGHBOURS,
    ablations.COLOUR,
]
EXPERIMENTS: Registry[Experiment] = Registry("experiments", {one.name: one for one in OUR_EXPERIMENTS})
