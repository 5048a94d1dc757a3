"""What the visualizer shows of gradients, and what it predicts of a step."""

import pytest
import torch

from distributed.instruments.sync_recorder import (
    CONFIG,
    WAYS,
    Costs,
    best_size,
    bucket_sizes,
    predict_step,
    record_step,
    watch_one_step,
)
from distributed.workbench.transformer import make_model


def test_gradients_are_shown_before_and_after_their_mean(pools):
    def batch(rank):
        generator = torch.Generator().manual_seed(rank)
        return torch.randint(CONFIG.v, (8, CONFIG.t + 1), generator=generator)

    alone = make_model(CONFIG)
    alone.loss(batch(0)).backward()
    before = {name: p.grad.norm().item() for name, p in alone.named_parameters()}
    alone.loss(batch(1)).backward()
    after = {name: p.grad.norm().item() / 2 for name, p in alone.named_parameters()}
    synced = pools[2](watch_one_step)[0]
    elements = {name: p.numel() for name, p in alone.named_parameters()}
    assert {s.name: s.elements for s in synced} == elements
    assert {s.name: s.before for s in synced} == pytest.approx(before, rel=1e-4)
    assert {s.name: s.after for s in synced} == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_a_recorded_step_has_an_all_reduce_for_each_bucket(pools, way):
    sizes = pools[2](bucket_sizes, way)[0]
    whole = sum(p.nbytes for p in make_model(CONFIG).parameters())
    assert sum(sizes) == whole
    assert len(sizes) == 1 if way == "one bucket" else len(sizes) > 3
    spans = pools[2](record_step, way)[0].spans
    backward = next(span for span in spans if span.name == "backward")
    reduced = [span for span in spans if span.kind == "communication"]
    assert len(reduced) == len(sizes)
    if way == "each parameter, afterwards":
        assert min(span.start for span in reduced) >= backward.end
    if way in ("each parameter, at once", "buckets"):
        assert min(span.start for span in reduced) < backward.end


def test_a_step_is_predicted_from_its_parts():
    slow_start = Costs(alpha=1, beta=0, forward=2, backward=4)
    assert predict_step(slow_start, [5, 5, 5, 5]) == 2 + 4 + 1
    link_is_slow = Costs(alpha=0, beta=1, forward=0, backward=4)
    assert predict_step(link_is_slow, [4, 4]) == 2 + 8


@pytest.mark.parametrize("alpha", [1e-5, 1e-3, 1e-1])
@pytest.mark.parametrize("beta", [0.0, 5e-10, 5e-9])
def test_no_other_size_is_predicted_to_be_faster_than_the_best(alpha, beta):
    costs, whole = Costs(alpha, beta, 0.01, 0.02), 10_000_000

    def step(buckets):
        return predict_step(costs, [whole // buckets] * buckets)

    fastest = min(step(buckets) for buckets in range(1, 400))
    best = step(max(1, round(whole / best_size(costs, whole))))
    assert best == pytest.approx(fastest, rel=0.02)
