import torch

from playground.exercises.check import check


def clip(group, shards, replicated, max_norm):
    """Scale all gradients in place so that their norm is at most max_norm. Return the old norm.

        norm² = Σ over ranks of Σ shards² + Σ replicated²

    `shards` is a list of this rank's parts of gradients. No part is on two ranks, and some can be
    empty. `replicated` is a list of whole gradients that are the same on every rank. If the norm is
    small enough, nothing changes. Otherwise, the factor is max_norm / (norm + 1e-6).
    """
    raise NotImplementedError


check("clip_on_shards", clip)
