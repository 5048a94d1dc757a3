"""Convert text to tokens, in files for train.py: python make_tokens.py TEXT [TEXT ...] DATA

DATA gets train.bin and val.bin, which has the last twentieth of the tokens. Each is a header of
256 int32 (20240520, 1, number of tokens), and the tokens as uint16: the format of llm.c. If a token
is larger than 65,535, they are uint32, and the header begins with 20240801. Without --tokenizer a
token is a byte. If the tokens don't fit into memory, call it once for each part of your text, and
name them train_000.bin, train_001.bin, …; train.py reads them all, in the order of their names.
"""

import argparse
import sys
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

Tokenize = Callable[[str], Iterable[int]]


def bytes_of(text: str) -> Iterable[int]:
    return text.encode()  # YOUR TOKENIZER HERE, or --tokenizer


def tokenizer_of(file: str) -> Tokenize:
    """A tokenizer.json, as models on Hugging Face have it. Raises ValueError if it isn't one."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError(f"--tokenizer {file}: needs `pip install tokenizers`") from None
    try:
        tokenizer = Tokenizer.from_str(read(file))
    except Exception as error:  # it raises no other class
        raise ValueError(f"--tokenizer {file}: {str(error).removeprefix(f'{file}: ')}") from None
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def read(file: str) -> str:
    """Raises ValueError with the file's name."""
    try:
        return Path(file).read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        byte, place = error.object[error.start], error.start
        line = f"{file}: not UTF-8 (byte 0x{byte:02x} at {place:,}). Convert it: iconv -f LATIN1 "
        raise ValueError(f"{line}-t UTF-8 {file}") from None


def write(path: Path, tokens: array) -> None:
    magic = {"H": 20240520, "I": 20240801}[tokens.typecode]
    header = array("i", [magic, 1, len(tokens)] + [0] * 253)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    print(f"{path}: {len(tokens):,} tokens, uint{8 * tokens.itemsize}")


def main(texts: list[str], folder: str, tokenizer: str | None = None) -> None:
    """Raises ValueError with one line for the user, before anything is written."""
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ValueError(f"{folder}: is a file, but the last argument is DATA, the folder to write")
    tokenize = tokenizer_of(tokenizer) if tokenizer else bytes_of
    tokens = array("I")
    for number, text in enumerate(texts, start=1):
        between = "\n" if number < len(texts) else ""
        tokens.extend(tokenize(read(text) + between))
    if not tokens:
        raise ValueError(f"{', '.join(texts)}: no text, so no tokens")
    largest = max(tokens)
    if largest < 2**16:
        tokens = array("H", tokens)
    Path(folder).mkdir(parents=True, exist_ok=True)
    cut = len(tokens) - len(tokens) // 20
    write(Path(folder, "train.bin"), tokens[:cut])
    write(Path(folder, "val.bin"), tokens[cut:])
    print(f"The largest token is {largest}: give train.py a --vocab of at least {largest + 1}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="text file in UTF-8")
    parser.add_argument("data", metavar="DATA", help="folder for train.bin and val.bin")
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json (default: a token per byte)"
    )
    given = parser.parse_args()
    try:
        main(given.texts, given.data, given.tokenizer)
    except (ValueError, OSError) as error:
        sys.exit(f"make_tokens.py: {error}")
