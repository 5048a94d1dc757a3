# says: the step is taken as the sum of all spans
# The step is the sum of everything that was done in it.
from playground.check import check


def communication_ratio(trace):
    spans = [span for span in trace.spans if span.kind == "communication"]
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total / sum(span.end - span.start for span in trace.spans)


check("communication_ratio", communication_ratio)
