"""The small transformer of the workbench."""

import torch

from distributed.workbench.transformer import CharTransformer, Config, Text, make_model


def test_the_model_sees_only_the_past_and_ties_its_last_layer():
    model = make_model(Config(v=10, t=8, d=16, heads=2))
    assert model.head.weight is model.embed.weight
    x = torch.randint(10, (1, 8), generator=torch.Generator().manual_seed(0))
    later = x.clone()
    later[0, 5:] = (later[0, 5:] + 1) % 10
    assert torch.equal(model(x)[0, :5], model(later)[0, :5])
    assert not torch.equal(model(x)[0, 5:], model(later)[0, 5:])
    untied = CharTransformer(Config(v=10, tied=False))
    assert untied.head.weight is not untied.embed.weight


def test_a_text_is_encoded_and_decoded_without_loss():
    text = Text("483 four hundred eighty-three\n")
    assert text.decode(text.encode("483 four")) == "483 four"
