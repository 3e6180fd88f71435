"""Tokenizers: text to token ids and each id to its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slotgrid.errors import InputError

if TYPE_CHECKING:
    from slotgrid.serve.artifact import Artifact


class Tokenizer(Protocol):
    """Byte-level: the text of a sequence is the concatenation of its tokens' bytes, read as UTF-8."""

    eos_ids: frozenset[int]
    longest_token_bytes: int

    def encode(self, text: str) -> list[int]: ...

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token; nothing for a special token."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation of {"role", "content"}, ready for the assistant's answer."""
        ...


_CONSONANTS = "bcdfghjklmnprstvwxyz"
_VOWELS = "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
_WORD = re.compile(f" [{_CONSONANTS}][{_VOWELS}][{_CONSONANTS}][{_VOWELS}]")
_SPECIAL = {"<eos>": 256, "<start>": 257, "<end>": 258}
FIRST_WORD = 264


class TinyTokenizer:
    """256 bytes, three special tokens, and words of a space and two syllables (" bako"), one token each.

    There is nothing to learn in a random model; this only has to be exact: every text comes back as it was.
    """

    eos_ids = frozenset((_SPECIAL["<eos>"], _SPECIAL["<end>"]))
    longest_token_bytes = 5

    def __init__(self, vocabulary: int) -> None:
        self._words = vocabulary - FIRST_WORD

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        at = 0
        for match in _WORD.finditer(text):
            word = _SYLLABLES.index(match[0][1:3]) * len(_SYLLABLES) + _SYLLABLES.index(match[0][3:5])
            if word < self._words:
                ids.extend(text[at : match.start()].encode())
                ids.append(FIRST_WORD + word)
                at = match.end()
        ids.extend(text[at:].encode())
        return ids

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes((token,))
        if token < FIRST_WORD:
            return b""
        first, second = divmod(token - FIRST_WORD, len(_SYLLABLES))
        return f" {_SYLLABLES[first]}{_SYLLABLES[second]}".encode()

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        ids = []
        for message in messages:
            ids += [_SPECIAL["<start>"], *self.encode(f"{message['role']}\n{message['content']}"), _SPECIAL["<end>"]]
        return [*ids, _SPECIAL["<start>"], *self.encode("assistant\n")]


# what SmolLM2's own chat template begins with when no system message is given
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class BpeTokenizer:
    """A byte-level BPE from a ``tokenizers`` JSON, with ChatML conversations."""

    def __init__(self, definition: str) -> None:
        from tokenizers import Tokenizer as Bpe

        self._bpe: Any = Bpe.from_str(definition)
        byte_of = {char: byte for byte, char in byte_alphabet().items()}
        special = {token.content for token in self._bpe.get_added_tokens_decoder().values()}
        self._bytes: dict[int, bytes] = {}
        for text, token in self._bpe.get_vocab().items():
            self._bytes[token] = b"" if text in special else bytes(byte_of[char] for char in text)
        self.longest_token_bytes = max(map(len, self._bytes.values()))
        start, end, text_end = (self._bpe.token_to_id(name) for name in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
        if start is None or end is None or text_end is None:
            raise InputError("tokenizer: it has no ChatML tokens (<|im_start|>, <|im_end|>, <|endoftext|>)")
        self._start, self._end = start, end
        self.eos_ids = frozenset((end, text_end))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self._bytes.get(token, b"")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": _SYSTEM}, *messages]
        ids = []
        for message in messages:
            ids += [self._start, *self.encode(f"{message['role']}\n{message['content']}"), self._end]
            ids += self.encode("\n")
        return [*ids, self._start, *self.encode("assistant\n")]


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level BPE vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    table.update((byte, chr(256 + i)) for i, byte in enumerate(others))
    return table


def load_tokenizer(artifact: Artifact) -> Tokenizer:
    """The tokenizer of an artifact's model."""
    if artifact.shape.name == "tiny":
        return TinyTokenizer(artifact.shape.vocabulary)
    try:
        return BpeTokenizer(artifact.read("tokenizer").decode())
    except ImportError:
        raise InputError(
            "smollm2 needs tokenizers, which is not installed; run: pip install 'slotgrid[serve]'"
        ) from None
