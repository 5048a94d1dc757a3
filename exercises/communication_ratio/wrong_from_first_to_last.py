# says: from the first to the last communication is not all
# What lies between two communications counts, too.
from distributed.trace import Trace
from playground.exercises.check import check


def communication_ratio(trace):
    spans = [span for span in trace.spans if span.kind == "communication"]
    if not spans:
        return 0.0
    total = max(s.end for s in spans) - min(s.start for s in spans)
    first, last = min(s.start for s in trace.spans), max(s.end for s in trace.spans)
    return total / (last - first)


def record(group, model, x):
    group.trace = trace = Trace(group.rank)
    with trace.span("forward"):
        loss = model(x).square().mean()
    with trace.span("backward"):
        loss.backward()
    group.trace = None
    return trace


check("communication_ratio", communication_ratio, record)
