# says: fast GPUs with fast links .*ZeRO-1 fits, but another that fits is faster: .* longer
# The simplest that fits, whatever it costs.
from distributed.plan import plan
from playground.exercises.check import check


def choose(case):
    """The simplest strategy of those that fit and take at most 1 % longer than the fastest."""
    options = plan(case.parameters, case.cluster, case.memory).options
    fitting = [option for option in options if option.fits]
    return fitting[0].name


check("choose_a_strategy", choose)
