"""The path of the book on its server: a secret of the reader, so that no other server gets cookies.

For cookies all ports of a machine are one site. Whatever another user serves here on another port
would be sent the cookies of the book, and could use them, if they belonged to the path `/`. They
belong to a path that only the reader knows. It is kept, so that bookmarks hold.
"""

import os
import re
import secrets
import stat
import sys
from pathlib import Path

BYTES = 24
WRITTEN = re.compile(rf"[0-9a-f]{{{2 * BYTES}}}\n?")


class NotSecret(Exception):
    """What is kept may be known to others; the text says what to do."""


def base_path(prefix: str, secret: str) -> str:
    """The path of the book below `prefix`, the part that a proxy in front of the server adds."""
    return f"{prefix.rstrip('/')}/b-{secret}/"


def kept_secret(file: Path) -> str:
    """The secret in `file`, which is made when it is not there.

    Where it cannot be kept (a folder that is not ours, a file system that lets all users read all
    files), a new one is returned each time. Raises `NotSecret` if others can read or change the
    file, or can have made it.
    """
    try:
        kept = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return new_secret(file)
    except OSError as error:  # a link, or not ours to read
        raise NotSecret(f"{file} cannot be used ({error.strerror}): remove it") from None
    with os.fdopen(kept) as stream:
        if not is_private(kept):
            raise NotSecret(f"other users can read or change {file}: remove it, for a new address")
        text = stream.read(2 * BYTES + 2)
    if not WRITTEN.fullmatch(text):
        raise NotSecret(f"{file} is not what the server wrote: remove it")
    return text.strip()


def new_secret(file: Path) -> str:
    """Make a secret and keep it in `file`, where nobody else can read that."""
    secret = secrets.token_hex(BYTES)
    try:
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        print(f"The address of the book is new: {file} cannot be written", file=sys.stderr)
        return secret
    with os.fdopen(made, "w") as stream:
        if is_private(made):
            stream.write(f"{secret}\n")
            return secret
    file.unlink()  # a file system without owners, such as a Windows disk under WSL
    print(f"The address of the book is new: others could read {file}", file=sys.stderr)
    return secret


def is_private(opened: int) -> bool:
    """Is this open file ours, and can nobody else read or write it?"""
    found = os.fstat(opened)
    is_ours = found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode)
    return is_ours and not found.st_mode & 0o077
