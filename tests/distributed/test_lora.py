"""Adapters on a frozen model: gradients, states and messages of nothing else, and a merge."""

import pytest
import torch
from torch import nn

from distributed.lora import (
    LoRALinear,
    adapter_parameters,
    add_adapters,
    main,
    merge_adapters,
)
from distributed.replicas import broadcast_module
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from distributed.simple_ddp import average_gradients
from distributed.workbench.memory_meter import nbytes
from distributed.workbench.transformer import Config, make_model
from distributed.zero1 import shard_optimizer
from distributed.zero3 import Sharded

INPUTS, OUTPUTS = 6, 3


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    inner = nn.Sequential(nn.Linear(8, 5), nn.Tanh())
    return nn.Sequential(
        nn.Linear(INPUTS, 8), nn.LayerNorm(8), inner, nn.Linear(5, OUTPUTS)
    ).double()


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def test_the_first_step_sees_the_model_as_it_was():
    module, x = network(), torch.randn(4, INPUTS).double()
    before = module(x)
    add_adapters(module, rank=2, alpha=4.0)
    assert torch.equal(module(x), before)
    module(x).square().sum().backward()
    assert all(p.grad.any() for name, p in trained(module).items() if name.endswith("lora_b"))
    assert not any(p.grad.any() for name, p in trained(module).items() if name.endswith("lora_a"))


def test_only_adapters_are_trained_and_the_formula_counts_them():
    module = network()
    predicted = adapter_parameters(module, 2)
    add_adapters(module, rank=2, alpha=4.0)
    assert {name.rpartition(".")[2] for name in trained(module)} == {"lora_a", "lora_b"}
    found = sum(p.numel() for p in trained(module).values())
    assert found == predicted == 2 * (6 + 8 + 8 + 5 + 5 + 3)
    module(torch.randn(4, INPUTS).double()).sum().backward()
    assert {name for name, p in module.named_parameters() if p.grad is not None} == {
        *trained(module)
    }


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_it_computes_what_a_layer_with_the_changed_weight_computes(rank):
    """The same outputs, and the gradients that dW of the changed weight gives by the chain rule."""
    torch.manual_seed(0)
    base, x = nn.Linear(5, 3).double(), torch.randn(4, 5).double().requires_grad_()
    layer = LoRALinear(base, rank, alpha=3.0)
    nn.init.normal_(layer.lora_b)
    a, b, scale = layer.lora_a.detach(), layer.lora_b.detach(), 3.0 / rank
    whole = (base.weight + scale * b @ a).detach().requires_grad_()
    same = x.detach().clone().requires_grad_()
    y, expected = layer(x), nn.functional.linear(same, whole, base.bias)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad)
    torch.testing.assert_close(layer.lora_a.grad, scale * b.T @ whole.grad)
    torch.testing.assert_close(layer.lora_b.grad, scale * whole.grad @ a.T)


def test_a_merged_model_has_its_old_form_and_computes_the_same():
    module, x = network(), torch.randn(4, INPUTS).double()
    names, before = [*module.state_dict()], module(x)
    add_adapters(module, rank=2, alpha=4.0)
    for p in trained(module).values():
        nn.init.normal_(p)
    adapted = module(x)
    merge_adapters(module)
    assert [*module.state_dict()] == names
    torch.testing.assert_close(module(x), adapted)
    assert not torch.allclose(adapted, before)


def step_on(module, optimizer_step, rank, ranks):
    """One step on this rank's rows of a batch of 12."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(12, INPUTS, generator=draw).double().chunk(ranks)[rank]
    module(x).square().mean().backward()
    optimizer_step()


def adapted(group, way, steps=3):
    """Adapters after some steps, elements sent per step, and bytes of the optimizer's states."""
    ring, module = RingGroup(group), network(seed=group.rank)
    add_adapters(module, rank=2, alpha=4.0)
    broadcast_module(module, group)
    if way == "ZeRO-3":
        module[0], module[3] = (Sharded(module[i], ring) for i in (0, 3))
        module[2][0] = Sharded(module[2][0], ring)
    if way == "ZeRO-1":
        step, optimizer = shard_optimizer(module, ring, torch.optim.AdamW, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(trained(module).values(), lr=0.01)

        def step():
            if way == "DDP":
                average_gradients(module, ring)
            optimizer.step()
            optimizer.zero_grad()

    ring.trace = trace = Trace(group.rank)
    for _ in range(steps):
        step_on(module, step, group.rank, group.size)
    sent = trace.sent // (8 * steps)
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    blocks = [part for part in module.modules() if isinstance(part, Sharded)]
    whole = [w for block in blocks for w in block.unshard().values()] or trained(module).values()
    return [w.detach().clone() for w in whole], sent, nbytes(states)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", ["DDP", "ZeRO-1", "ZeRO-3"])
def test_ranks_train_adapters_like_one_device_and_send_nothing_else(pools, way, ranks):
    alone, _, whole_states = pools[1](adapted, "DDP")[0]
    size = adapter_parameters(network(), 2)
    for found, sent, states in pools[ranks](adapted, way):
        torch.testing.assert_close(found, alone)
        volume = {"DDP": 2, "ZeRO-1": 2, "ZeRO-3": 3}[way] * size * (ranks - 1) / ranks
        assert abs(sent - volume) <= 3 * 6 * ranks, "rounding of six tensors or three blocks"
        share = 1 if way == "DDP" else ranks
        assert states == pytest.approx(whole_states / share, abs=6 * 2 * 8 * ranks)


def test_what_cannot_be_adapted_is_refused():
    with pytest.raises(ValueError, match="rank=0"):
        LoRALinear(nn.Linear(2, 2), 0, 1.0)
    with pytest.raises(ValueError, match="one linear layer"):
        add_adapters(nn.Linear(2, 2), 1, 1.0)
    same = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"0.weight and 1.weight are one weight"):
        add_adapters(nn.Sequential(same, same), 1, 1.0)


def test_a_tied_head_is_refused_because_merging_would_change_the_embedding():
    model = make_model(Config(v=10, t=4, d=8, heads=2))
    with pytest.raises(ValueError, match=r"embed.weight and head.weight are one weight"):
        add_adapters(model, 2, 4.0)
    assert all(p.requires_grad for p in model.parameters()), "it is as it was"
    add_adapters(model.blocks, 2, 4.0)
    assert len([part for part in model.modules() if isinstance(part, LoRALinear)]) == 2 * 4


def test_the_lesson_runs_with_three_ranks():
    main(ranks=3, rank=2, steps=30)
