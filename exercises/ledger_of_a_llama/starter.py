from playground.exercises.check import check


def ledger(model, tokens, ranks, stage, checkpoint):
    """Bytes on each rank when the loss is computed, by the lines below: a dict.

    bf16, Adam in fp32, fp32 master copy; stage 0 is DDP. `model` has layers, d, heads, kv (heads of
    keys, or of values), ffn and vocab_size; and, counted in parameters: block (one layer's), root
    (all that is in no layer) and parameters (all). The network is gated (SwiGLU), and with
    `checkpoint` each layer keeps its input alone.

        states      parameters, gradients, master copy and Adam's two averages, cut by the stage
        gathered    with ZeRO-3 on several ranks: two layers and the root, in bf16
        buckets     from ZeRO-2 on, on several ranks: gradients of a layer or of the root, in bf16
        layers      what all layers keep of the tokens, in bf16; with `checkpoint` one layer more,
                    which is just computed again; and 2 d elements of each token for the two ends
        logits      12 bytes for each token and word
    """
    raise NotImplementedError


check("ledger_of_a_llama", ledger)
