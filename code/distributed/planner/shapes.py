"""Shapes of transformers: parameters, FLOP per token, and the activations of a forward pass.

    parameters      layers · (attention + network + norms) + embeddings
    FLOP per token  6Ψ + 12 · layers · d · t: two per multiply-add, twice as many backward
    activations     bytes per token and layer, by what is recomputed

The last line assumes kernels that keep no t × t matrix (Dao et al. 2022). In a mixture of experts,
every rank stores all experts, sends a gradient for each, and computes with the experts that a token
is routed to.
"""

from typing import NamedTuple

from distributed.runtime.script import run_script

CHECKPOINTS = ("none", "selective", "full")
# Bytes per word's score at the peak of the loss. PyTorch has its logarithm in fp32, the gradient of
# that, and the gradient of the score. Megatron has scores in bf16 and fp32 and their exponentials,
# which the gradients overwrite; a fused kernel overwrites the score with the gradient.
PLAIN, IN_PLACE, FUSED = 12, 10, 2
LOGARITHM = PLAIN // 3  # the part of PyTorch's that the forward pass leaves for the backward pass


class Experts(NamedTuple):
    """A mixture: each token goes through `active` of `routed` networks of width `ffn`."""

    routed: int
    active: int
    ffn: int
    shared: int = 0  # total width of the experts that all tokens go through
    dense: float = 0.0  # share of the layers with one network of the model's width instead


class Latent(NamedTuple):
    """Multi-head latent attention: keys and values come from `kv_rank` numbers per token.

    Section 2.1 of DeepSeek-V2 (2024). A head has queries and keys of width plain + rotated.
    """

    q_rank: int  # 0: queries come from the layer's input, without a latent vector
    kv_rank: int
    plain: int
    rotated: int  # all heads share the keys' rotated part
    value: int


class Model(NamedTuple):
    """Layers of width d, with `kv` heads for keys and values and a network of width `ffn`."""

    layers: int
    d: int
    heads: int
    kv: int
    ffn: int
    vocab_size: int
    gated: bool = True  # three matrices in the network (SwiGLU), not two (GELU)
    tied: bool = False  # the last layer is the embedding
    positions: int = 0  # learned ones
    head_dim: int = 0  # width of a head; 0: d / heads
    window: int = 0  # tokens that a token of a local layer attends to, including itself
    local: float = 0.0  # share of the layers with that window; others attend to the whole row
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def q_width(self) -> float:
        """Width of all heads' queries together."""
        if self.latent:
            return self.heads * (self.latent.plain + self.latent.rotated)
        return self.heads * self.head_dim if self.head_dim else self.d

    @property
    def kv_width(self) -> float:
        """Width of the keys (or of the values) of all their heads together."""
        return self.kv * self.head_dim if self.head_dim else self.d * self.kv / self.heads

    @property
    def matrices(self) -> int:
        """Number of matrices in a network or an expert."""
        return 3 if self.gated else 2

    @property
    def attention(self) -> float:
        """Parameters of one layer's attention."""
        if self.latent is None:
            return 2 * self.d * (self.q_width + self.kv_width)
        q_rank, kv_rank, plain, rotated, value = self.latent
        queries = q_rank * (self.d + self.q_width) if q_rank else self.d * self.q_width
        up = kv_rank * self.heads * (plain + value)
        return queries + self.d * (kv_rank + rotated) + up + self.heads * value * self.d

    @property
    def network(self) -> float:
        """Parameters of one layer's network (or of all its experts): the mean over the layers."""
        one = self.matrices * self.d
        if self.experts is None:
            return one * self.ffn
        routed, _, ffn, shared, dense = self.experts
        mixed = one * (routed * ffn + shared) + self.d * routed  # the last term is the router
        return dense * one * self.ffn + (1 - dense) * mixed

    @property
    def down(self) -> float:
        """Parameters of the last matrices of a layer's network, whose gradients come first."""
        return self.network / self.matrices

    def adapters(self, rank: int, active: bool = False) -> float:
        """LoRA's parameters in one layer: two matrices of this rank beside each of its matrices.

        rank · (inputs + outputs) per matrix (LoRA, arXiv:2106.09685, §4.1). Every expert has its
        own; `active` counts only the experts that a token goes through.
        """
        d, attention = self.d, 2 * (2 * self.d + self.q_width + self.kv_width)
        if self.latent is not None:
            q_rank, kv_rank, plain, rotated, value = self.latent
            queries = d + 2 * q_rank + self.q_width if q_rank else d + self.q_width
            down_and_up = d + rotated + 2 * kv_rank + self.heads * (plain + value)
            attention = queries + down_and_up + self.heads * value + d
        ends: float = self.matrices * (d + self.ffn)
        if self.experts is not None:
            routed, chosen, ffn, shared, dense = self.experts
            mixed = (chosen if active else routed) * (d + ffn) + (d + shared if shared else 0)
            ends = dense * ends + (1 - dense) * self.matrices * mixed
        return rank * (attention + ends)

    @property
    def block(self) -> float:
        """Parameters of one layer, the mean over the layers; biases are left out."""
        return self.attention + self.network + 2 * self.d

    @property
    def idle(self) -> float:
        """Parameters of the experts that a token isn't routed to, in all layers."""
        if self.experts is None:
            return 0.0
        routed, active, ffn, _, dense = self.experts
        return self.layers * (1 - dense) * self.matrices * self.d * (routed - active) * ffn

    @property
    def active(self) -> float:
        """Parameters that a token goes through, with the whole embedding instead of its row."""
        return self.parameters - self.idle

    @property
    def root(self) -> float:
        """Parameters of embeddings, last layer and last norm."""
        return ((1 if self.tied else 2) * self.vocab_size + self.positions + 1) * self.d

    @property
    def parameters(self) -> float:
        return self.layers * self.block + self.root

    @property
    def multiplied(self) -> float:
        """Parameters of all products, including norms, but not an embedding that is looked up."""
        return self.parameters - (self.positions + (0 if self.tied else self.vocab_size)) * self.d

    def flops(self, context: int) -> float:
        """FLOP of a training step per token, without recomputation.

        An embedding is looked up and not multiplied, unless the last layer is the same matrix.
        """
        attended = (1 - self.local) * context + self.local * self.seen(context)
        values = self.heads * self.latent.value if self.latent else self.q_width
        widths = self.q_width + values  # q · k, and the result's products with v
        return 6 * (self.multiplied - self.idle) + 6 * self.layers * widths * attended

    def seen(self, context: int) -> float:
        """Tokens that a local layer's kernel attends to, on a scale where a whole row counts as t.

        A causal row of t tokens has t²/2 pairs and counts as t per token. With a window of w tokens
        it has w (t − w/2) pairs, which count as w (2 − w/t).
        """
        if not self.window or self.window >= context:
            return context
        return self.window * (2 - self.window / context)

    def kept(self, checkpoint: str, compiled: bool = False) -> float:
        """Numbers that a layer keeps per token.

        None: inputs and results of two norms, q, k and v, attention's result, and in the network
        four (gated) or two times its width. Selective, as in TorchTitan: the input, attention's
        result, and that of every second product: q, v, gate (or up), down (if gated). Full: the
        input. If PyTorch compiles a layer, it recomputes only SwiGLU's result. GELU's is an input
        of a product, and the backward pass keeps what it multiplies with.
        """
        if checkpoint == "full":
            return self.d
        width, copies = self.ffn_of_a_token
        if checkpoint == "selective":  # of q, k, v, out, (gate,) up, down: the 1st, 3rd, 5th, 7th
            return self.d + self.half_of_attention + width + (copies if self.gated else 0)
        results = 4 if self.gated else 2
        if compiled and self.gated:
            results -= 1
        return 4 * self.d + self.kept_by_attention + self.kept_by_routing + results * width

    @property
    def kept_by_routing(self) -> float:
        """Numbers per token of the copies that are sorted by expert, and of these experts' results.

        The shared expert and a layer without a mixture read the norm's result, and keep none.
        """
        if self.experts is None:
            return 0.0
        return 2 * self.d * (1 - self.experts.dense) * self.experts.active

    @property
    def kept_by_attention(self) -> float:
        """Numbers per token of q, k, v and the result, with the latent vectors if there are any."""
        if self.latent is None:
            return 2 * (self.q_width + self.kv_width)
        q_rank, kv_rank, _, rotated, value = self.latent
        return 2 * (self.q_width + self.heads * value) + q_rank + kv_rank + rotated

    @property
    def gradients_within(self) -> float:
        """Numbers per token of the gradients that a layer's backward pass has at its peak.

        When SwiGLU's (or GELU's) backward pass ends, the gradients of its result and of its inputs
        are there, without its result itself, beside the gradient of the layer's own result.
        """
        width, _ = self.ffn_of_a_token
        return (2 if self.gated else 1) * width + self.d

    @property
    def cast_again(self) -> float:
        """Numbers per token of a layer's norms that autocast casts more than once.

        A norm leaves fp32, and every matrix that reads it casts and keeps its own copy: q, k and v,
        or two with latent vectors; gate and up, and in a mixture the router as well.
        """
        _, copies = self.ffn_of_a_token
        found = (1 if self.latent else 2) * self.d + (copies if self.gated else 0)
        if self.experts and self.experts.shared:
            found += self.d * (1 - self.experts.dense)
        return found

    @property
    def half_of_attention(self) -> float:
        """Numbers per token of attention's result and of every second product."""
        if self.latent is None:
            return 2 * self.q_width + self.kv_width
        return self.heads * self.latent.value + self.kept_by_attention / 2

    @property
    def ffn_of_a_token(self) -> tuple[float, float]:
        """Total width of the networks that a token goes through in a layer, and of their results.

        The mean over the layers.
        """
        if self.experts is None:
            return self.ffn, self.d
        _, active, ffn, shared, dense = self.experts
        width = dense * self.ffn + (1 - dense) * (active * ffn + shared)
        return width, self.d * (dense + (1 - dense) * (active + bool(shared)))

    def activations(
        self,
        tokens: float,
        checkpoint: str = "none",
        size: float = 2,
        scores: float = PLAIN,
        stream: float | None = None,
        compiled: bool = False,
    ) -> float:
        """Bytes at the end of the forward pass of `tokens` tokens, with `size` bytes per number.

        While a layer is recomputed, all of it is in memory, compiled or not. `scores` is the bytes
        per word's score: `PLAIN` or `FUSED` at the peak of a step. `stream` is that per element of
        a norm's input and output under autocast; then a layer that isn't compiled also keeps what
        it casts again. Raises ValueError for an unknown checkpoint.
        """
        if checkpoint not in CHECKPOINTS:
            raise ValueError(f"checkpoint={checkpoint!r}: choose {', '.join(CHECKPOINTS)}")
        again = 0.0 if checkpoint == "none" else self.kept("none")
        layers = self.layers * self.kept(checkpoint, compiled) + again
        found = size * (layers + 2 * self.d) + scores * self.vocab_size
        if stream is not None:
            inputs = self.layers * (2 if checkpoint == "none" else 1) + (2 if again else 0) + 1
            found += (stream - size) * inputs * self.d
            with_copies = 0 if compiled else self.layers
            if again:
                with_copies = 1
            if stream > size:
                found += size * with_copies * self.cast_again
        return tokens * found


def llama(layers: int, d: int, heads: int, kv: int, ffn: int, vocab_size: int) -> Model:
    return Model(layers, d, heads, kv, ffn, vocab_size)


def gpt(layers: int, d: int, heads: int, vocab_size: int = 50257, positions: int = 2048) -> Model:
    return Model(layers, d, heads, heads, 4 * d, vocab_size, False, True, positions)


PRESETS = {
    # The papers of GPT-2, table 2, and of GPT-3, table 2.1
    "gpt-2-124m": gpt(12, 768, 12, positions=1024),
    "gpt-2-1.5b": gpt(48, 1600, 25, positions=1024),
    "gpt-3-6.7b": gpt(32, 4096, 32),
    "gpt-3-13b": gpt(40, 5120, 40),
    "gpt-3-175b": gpt(96, 12288, 96),
    "gpt-530b": gpt(105, 20480, 128, 51200),  # Narayanan et al. 2021, table 1
    # llm-foundry, scripts/train/yamls/pretrain
    "mpt-125m": gpt(12, 768, 12, 50368),
    "mpt-350m": gpt(24, 1024, 16, 50368),
    "mpt-760m": gpt(24, 1536, 12, 50368),
    "mpt-1b": gpt(24, 2048, 16, 50368),
    "mpt-3b": gpt(32, 2560, 20, 50368),
    "mpt-7b": gpt(32, 4096, 32, 50368),
    "mpt-13b": gpt(40, 5120, 40, 50368),
    "mpt-30b": gpt(48, 7168, 56, 50368),
    "mpt-70b": gpt(80, 8192, 64, 50368),
    # The papers of TinyLlama, Llama 2, Code Llama, and Llama 3, table 3
    "tinyllama-1.1b": llama(22, 2048, 32, 4, 5632, 32000),
    "llama-2-7b": llama(32, 4096, 32, 32, 11008, 32000),
    "llama-2-13b": llama(40, 5120, 40, 40, 13824, 32000),
    "llama-2-34b": llama(48, 8192, 64, 8, 22016, 32000),
    "llama-2-70b": llama(80, 8192, 64, 8, 28672, 32000),
    "llama-3-8b": llama(32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": llama(80, 8192, 64, 8, 28672, 128256),
    "llama-3-405b": llama(126, 16384, 128, 8, 53248, 128256),
}


def of_size(parameters: float, vocab_size: int = 50257, positions: int = 2048) -> Model:
    """A GPT with about this many parameters: depth grows with width, heads have width 128."""
    layers = 2
    while 12 * layers * (128 * layers) ** 2 < parameters and layers < 512:
        layers += 1
    # 12 · layers · d² + (vocab_size + positions + 2 · layers + 1) · d = parameters, solved for d
    linear = vocab_size + positions + 2 * layers + 1
    root = (linear**2 + 48 * layers * parameters) ** 0.5
    d = max(1, int((root - linear) / (24 * layers)))
    return gpt(layers, d, max(1, d // 128), vocab_size, positions)


def main(context: int = 2048) -> None:
    """Print all presets: billions of parameters, GFLOP and MB per token, by what is kept."""
    for name, model in PRESETS.items():
        kept = [model.activations(1, checkpoint) / 1e6 for checkpoint in CHECKPOINTS]
        shown = ", ".join(f"{size:.2f}" for size in kept)
        print(f"{name:15}{model.parameters / 1e9:8.2f}{model.flops(context) / 1e9:9.1f}  {shown}")
        assert kept == sorted(kept, reverse=True)


if __name__ == "__main__":
    run_script(main)
