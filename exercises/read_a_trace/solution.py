from playground.exercises.check import check


def read(traces):
    calls = [[s for s in trace.spans if s.kind == "communication"] for trace in traces]
    caused, sending = [0.0] * len(traces), 0.0
    for spans in zip(*calls, strict=True):
        starts = [span.start for span in spans]
        last = max(starts)
        caused[starts.index(last)] += sum(last - start for start in starts)
        sending += min(span.end for span in spans) - last
    return caused.index(max(caused)), sum(caused), sending


check("read_a_trace", read)
