"""The papers' claims as experiments that anyone can run again; a written rule gives each verdict.

vitreous.papers.names()
vitreous.papers.run("positions")                 # the missing cells, then the verdict
vitreous.papers.verify("C18")                    # from the committed cells, in seconds
"""

from vitreous.papers.claims import find, find_all, names, states, verify
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.page import report
from vitreous.papers.results import Results
from vitreous.papers.runner import OUT, rerun, run, run_all

__all__ = [
    "EXPERIMENTS",
    "OUT",
    "Results",
    "find",
    "find_all",
    "names",
    "report",
    "rerun",
    "run",
    "run_all",
    "states",
    "verify",
]
