# says: calls all_gather: keep to messages
# A collective cannot deadlock if all call it, but it sends everything to everyone.

from playground.exercises.check import check


def shift_and_sum(group, x):
    everything = x.repeat(group.size)
    group.all_gather(x, everything)
    arrays = everything.chunk(group.size)
    return arrays[group.rank - 1].clone(), sum(arrays)


check("find_the_deadlock", shift_and_sum)
