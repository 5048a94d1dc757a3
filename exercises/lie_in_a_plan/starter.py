from playground.exercises.check import check


def lie(facts, claims):
    """The name of the one claim that is not so: a key of `claims`.

    Facts are given and true: parameters, gpus, tokens_each (of a GPU in a step), tokens (of the
    whole run), flops_each (operations for each token, nothing computed again), peak (FLOP/s of a
    GPU), layers, d, kept (elements that a layer keeps of a token).

        states_gb       bf16, Adam in fp32, master copy, and ZeRO-3 over all GPUs
        activations_gb  kept · layers · tokens_each, in bf16
        held_gb         both together
        step_s          time of a step
        tokens_per_s    of all GPUs together
        days            of the whole run
        mfu             share of the peak, of operations that the model needs

    Claims are rounded to three digits, so two numbers that agree are within 1% of each other.
    """
    raise NotImplementedError


check("lie_in_a_plan", lie)
