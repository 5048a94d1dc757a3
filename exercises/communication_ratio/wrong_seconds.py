# says: these are seconds, and not a share
# The time is not divided by that of the step.
from playground.check import check


def communication_ratio(trace):
    spans = [span for span in trace.spans if span.kind == "communication"]
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


check("communication_ratio", communication_ratio)
