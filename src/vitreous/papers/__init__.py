"""The papers' claims as experiments that anyone can run again, with a verdict by a rule that stood before.

vitreous.papers.names()
vitreous.papers.run("positions")                 # the missing cells, then the verdict
vitreous.papers.verify("C18")                    # from the committed cells, in seconds
"""

from vitreous.papers.claims import find, names, states, verify
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.page import report
from vitreous.papers.results import Results
from vitreous.papers.runner import OUT, rerun, run

__all__ = ["EXPERIMENTS", "OUT", "Results", "find", "names", "report", "rerun", "run", "states", "verify"]
