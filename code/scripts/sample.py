"""Let a model continue a text: python sample.py FOLDER "Once upon a time" --tokens 100

FOLDER has config.json and *.safetensors, such as RUN/model of finetune.py, and a tokenizer.json
(without one, a token is a byte). It takes one GPU, or a CPU, and computes the whole text again for
each token, so it's for trying, not for serving. It stops after --tokens, or if the model ends the
text before. It needs models.py and weights.py in its folder.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from models import fields_of, model_of
from weights import load


def tokenizer_of(file: Path) -> Any:
    """Raises ValueError with one line for the user."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError(f"{file}: needs `pip install tokenizers`") from None
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # it raises no other class
        raise ValueError(f"{file}: {error}") from None


def ends_of(folder: str) -> list[int]:
    """Tokens that end a text."""
    for name in ("generation_config.json", "config.json"):
        file = Path(folder, name)
        ends = fields_of(file).get("eos_token_id") if file.exists() else None
        if ends is not None:
            return ends if isinstance(ends, list) else [ends]
    return []


@torch.no_grad()
def main(folder: str, text: str, count: int, temperature: float, seed: int) -> str:
    """Raises ValueError with one line for the user."""
    for name, value in {"--tokens": count, "--temperature": temperature}.items():
        if not value >= 0:
            raise ValueError(f"{name} {value}: must be at least 0")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device("meta"):
        model = model_of(folder)
    model = model.to_empty(device=device).to(torch.bfloat16 if device.type == "cuda" else None)
    load(model, folder)
    tokenizer, file, ends = None, Path(folder, "tokenizer.json"), ends_of(folder)
    if file.exists():
        tokenizer = tokenizer_of(file)
    elif model.vocab > 256:
        raise ValueError(
            f"{file}: isn't there, and the {model.vocab} tokens aren't bytes: copy it there"
        )
    given = tokenizer.encode(text).ids if tokenizer else list(text.encode())
    if not given:
        raise ValueError("TEXT is empty: give at least one word")
    if max(given) >= model.vocab:
        raise ValueError(f"TEXT has token {max(given)}, but the model has only {model.vocab}")
    tokens, draw = torch.tensor([given], device=device), torch.Generator(device).manual_seed(seed)
    for _ in range(count):
        logits = model.eval()(tokens[:, -model.shape.longest :])[:, -1].float()
        if temperature:
            chosen = (logits / temperature).softmax(-1).multinomial(1, generator=draw)
        else:
            chosen = logits.argmax(-1, keepdim=True)
        if chosen.item() in ends:
            break
        tokens = torch.cat([tokens, chosen], 1)
    found = tokens[0].tolist()
    return tokenizer.decode(found) if tokenizer else bytes(found).decode(errors="replace")


if __name__ == "__main__":
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("folder", metavar="FOLDER", help="folder of the model")
    parser.add_argument("text", metavar="TEXT", help="text to continue")
    parser.add_argument("--tokens", type=int, default=100, help="most tokens to add (default: 100)")
    temperature = "divisor of the logits; 0: always the most likely token (default: 0.8)"
    parser.add_argument("--temperature", type=float, default=0.8, help=temperature)
    parser.add_argument("--seed", type=int, default=0, help="seed of the choices (default: 0)")
    told = parser.parse_args()
    try:
        print(main(told.folder, told.text, told.tokens, told.temperature, told.seed))
    except ValueError as error:
        sys.exit(f"sample.py: {error}")
