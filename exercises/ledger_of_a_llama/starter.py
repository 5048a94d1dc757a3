from playground.exercises.check import check


def ledger(model, tokens, ranks, stage, checkpoint):
    """Bytes on each rank when the loss is computed: a dict with the five lines below.

    The paper's recipe: bf16 weights and gradients, an fp32 master copy, and Adam in fp32. Stage 0
    is DDP. `model` has layers, d, heads, kv (the heads for keys, and for values), ffn, and
    vocab_size. It also has numbers of parameters: block (in one layer), root (in no layer), and
    parameters (in all). The MLP is gated (SwiGLU).

        states      parameters, gradients, master copy, and Adam's two averages, divided as the
                    stage says
        gathered    ZeRO-3 on several ranks: two layers and the root, in bf16
        buckets     ZeRO-2 or 3 on several ranks: gradients of a layer or of the root, whichever
                    are more, in bf16
        layers      activations of all layers, in bf16, and 2 d elements per token outside the
                    layers. With `checkpoint`, each layer keeps only its input, and one layer is
                    being recomputed.
        logits      12 bytes per token and vocabulary entry
    """
    raise NotImplementedError


check("ledger_of_a_llama", ledger)
