from playground.exercises.check import check


def ledger(model, tokens, ranks, stage, checkpoint):
    """Bytes on each rank: states, temporary buffers, activations, and logits."""
    psi, d = model.parameters, model.d
    states = 12 * psi / (ranks if stage >= 1 else 1)
    states += 2 * psi / (ranks if stage >= 2 else 1)
    states += 2 * psi / (ranks if stage >= 3 else 1)
    several = ranks > 1
    gathered = 2 * (2 * model.block + model.root) if several and stage >= 3 else 0
    buckets = 2 * max(model.block, model.root) if several and stage >= 2 else 0
    narrow = d * model.kv / model.heads
    layer = 4 * d + (d + 2 * narrow) + d + 4 * model.ffn
    kept = model.layers * d + layer if checkpoint else model.layers * layer
    return {
        "states": states,
        "gathered": gathered,
        "buckets": buckets,
        "layers": 2 * tokens * (kept + 2 * d),
        "logits": 12 * tokens * model.vocab_size,
    }


check("ledger_of_a_llama", ledger)
