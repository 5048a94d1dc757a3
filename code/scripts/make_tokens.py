"""Text to the files of tokens that train.py reads: python make_tokens.py TEXT [TEXT ...] DATA

DATA gets train.bin and val.bin, which has the last twentieth of the tokens. Each is a header of
256 int32 (20240520, 1, how many tokens), and the tokens as uint16: the format of llm.c. For more
tokens than fit into memory call it once for each part of your text, and name them train_000.bin,
train_001.bin, …; train.py reads them all, in the order of their names.
"""

import sys
from array import array
from pathlib import Path


def tokenize(text: str) -> array:
    return array("H", [*text.encode()])  # bytes. YOUR TOKENIZER HERE


def write(path: Path, tokens: array) -> None:
    header = array("i", [20240520, 1, len(tokens)] + [0] * 253)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    print(f"{path}: {len(tokens):,} tokens")


def main(texts: list[str], folder: str) -> None:
    tokens = tokenize("\n".join(Path(text).read_text("utf-8") for text in texts))
    Path(folder).mkdir(parents=True, exist_ok=True)
    cut = len(tokens) - len(tokens) // 20
    write(Path(folder, "train.bin"), tokens[:cut])
    write(Path(folder, "val.bin"), tokens[cut:])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1:-1], sys.argv[-1])
