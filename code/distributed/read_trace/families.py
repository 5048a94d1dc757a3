"""Families of kernels, by name: what one would change by the same means.

A name is taken apart into words, at underscores, digits and capitals, and the first of the ordered
RULES that finds its words wins: so `conv` isn't found in `convert`, nor `norm` in `renormalize`.
First only the name of the function counts, and then its types as well, since `cutlass::Kernel` may
be anything. `tests/distributed/kernel_names.json` has names of public traces.
"""

import re
from functools import cache

COMMUNICATION = "communication"
COMPILED = "fused by torch.compile"
ATTENTION = "attention"
PRODUCTS = "matrix products"  # and convolutions
OPTIMIZER = "optimizer"
EMBEDDINGS = "embedding tables"
NORMS = "softmax and norms"
REDUCTIONS = "reductions"  # and pooling
COPIES = "copies, gathers and sorts"
ELEMENTS = "element by element"
OTHER = "other"
FUSIBLE = (NORMS, REDUCTIONS, ELEMENTS)  # of an eager model, by torch.compile

MANGLED = re.compile(r"_ZN?K?(?=\d)")
DIGITS = re.compile(r"[1-9]\d*")
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
RULES = [
    (family, re.compile(rf"\b(?:{words})\b"))
    for family, words in (
        (COMPILED, r"triton (?:poi|red|per|for|spl|mix)|triton 0 d"),
        (
            COMMUNICATION,
            r"(?:nccl|rccl|hccl|nvshmem|rocshmem)\w*|multimem|all ?reduce|all ?gather|all ?to ?all|"
            r"reduce ?scatter|cross device reduce|lamport|deep ep|ep (?:inter|intra)node",
        ),
        (COPIES, r"(?:reshape|concat) and cache|store kv ?cache|kv indices"),
        (
            ATTENTION,
            r"flash|fmha|mmha|mha|mqa|mla|sdpa|sage fwd|sage bwd|\w*attn|\w*attention",
        ),
        (
            PRODUCTS,
            r"(?!fbgemm)\w*gemm\w*|gemv\w*|(?:add|b|addb|baddb)?mm|\w*matmul\w*|nvjet|cijk|\w*xmma|"
            r"wgmma|kreduce|split k|fused moe|marlin|machete|\w*scudnn|d?conv(?:olution|olve)?|"
            r"fprop|dgrad|wgrad|winograd\w*|im 2 (?:d 2 )?col|"
            r"fft [12] d (?:r 2 c|c 2 r)|flip filter",
        ),
        (ELEMENTS, r"rotary|rope"),
        (EMBEDDINGS, r"embeddings?|embedding bag|pooled embs|bounds check indices"),
        (OPTIMIZER, r"multi tensor apply|foreach|adam\w?|adamw|sgd|lamb|lion|adagrad|adafactor"),
        (
            NORMS,
            r"(?:log)?soft ?max\w*|\w*norm|bn|gamma beta|rowwise moments|welford|cross entropy|"
            r"compute internal gradients|compute (?:backward )?fused params",
        ),
        (
            COPIES,
            r"cub|rocprim|thrust|gather|scatter|index\w*|indices|\w*sort\w*|top ?k|transpose\w*|"
            r"cat array\w*|permute\w*|n(?:chw|hwc) to n(?:chw|hwc)|copy|memset|routing|bucketize|"
            r"searchsorted|scan|histogram|finalize|unique|nonzero|bitmatrix|split with sizes",
        ),
        (REDUCTIONS, r"reduce|reduction|pool|pooling|loss|sum|mean|argmax|dot"),
        (
            ELEMENTS,
            r"elementwise|pointwise|act and mul|\w*silu|\w*gelu|\w*relu|swiglu|dropout|quant\w*|"
            r"qparam|scale?|cast|convert|fill|clamp|upsample|distribution|"
            r"sub tensor op|rowwise to float",
        ),
    )
]
LIBRARIES = re.compile(r"\b(?:cutlass|cublas|cudnn|ck|miopen)\b")  # made for matrix products


@cache
def family(name: str) -> str:
    """The family of a kernel, or OTHER."""
    function, whole = words(short(name)), words(name)
    for text in (function, whole):
        for found, rule in RULES:
            if rule.search(text):
                return found
    return PRODUCTS if LIBRARIES.search(whole) else OTHER


def words(name: str) -> str:
    """A name as its words: `fused_layer_norm` and `FusedLayerNorm` → `fused layer norm`."""
    return " ".join(WORD.findall(name)).lower()


def short(name: str) -> str:
    """A kernel's name without its types: `void at::f<4, …>(int, …)` → `at::f`.

    Also of a mangled name, as composable_kernel's come on ROCm: `_ZN2ck4gemmI…` → `ck::gemm`.
    """
    if " -> " in name:
        return name  # Memcpy DtoD (Device -> Device)
    plain, depth = [], 0
    for letter in name.removeprefix("void ").replace("(anonymous namespace)::", ""):
        depth += letter in "<(["
        if not depth:
            plain.append(letter)
        depth -= letter in ">)]" and depth > 0
    _, _, function = "".join(plain).rpartition("::type ")  # std::enable_if's, before the name
    return demangled(function.strip() or name)


def demangled(name: str) -> str:
    """The identifiers at the beginning of a mangled name; any other name as it is.

    https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling-structure
    """
    begin = MANGLED.match(name)
    if not begin:
        return name
    found, at = [], begin.end()
    while digits := DIGITS.match(name, at):
        at = digits.end() + int(digits[0])
        found.append(name[digits.end() : at])
    return "::".join(part for part in found if not part.startswith("_GLOBAL__N")) or name
