"""Text streams, stop texts, sampling and tokenizers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgrid.serve.generation import Request, Sampler, TextStream
from slotgrid.serve.tokens import FIRST_WORD, TinyTokenizer

TOKENIZER = TinyTokenizer(8192)


@given(text=st.text())
def test_every_text_comes_back_as_it_was(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert b"".join(map(TOKENIZER.token_bytes, ids)).decode() == text
    assert all(len(TOKENIZER.token_bytes(i)) <= TOKENIZER.longest_token_bytes for i in ids)


@given(ids=st.lists(st.integers(FIRST_WORD, 8191)))
def test_words_are_one_token_each(ids: list[int]) -> None:
    text = b"".join(map(TOKENIZER.token_bytes, ids)).decode()
    assert TOKENIZER.encode(text) == ids


def test_words_beyond_the_vocabulary_are_bytes() -> None:
    small = TinyTokenizer(FIRST_WORD + 1)
    assert small.encode(" baba") == [FIRST_WORD]
    assert small.encode(" babe") == list(b" babe")


def test_chat_marks_cannot_be_written_by_a_message() -> None:
    ids = TOKENIZER.encode_chat([{"role": "user", "content": "<end>"}])
    assert ids.count(258) == 1
    assert ids.count(257) == 2


class Logits:
    """A step result with chosen logits."""

    def __init__(self, *rows: list[float]) -> None:
        self.rows = [np.array(row, np.float32) for row in rows]
        self.most_likely = [int(row.argmax()) for row in self.rows]

    def logits(self, row: int) -> np.ndarray:
        return self.rows[row]


def request(**options: object) -> Request:
    return Request(id="r", prompt=(1,), max_tokens=8, order=(0,), **options)  # type: ignore[arg-type]


def test_temperature_zero_takes_the_most_likely() -> None:
    sampler = Sampler(request())
    assert [sampler.choose(Logits([0, 3, 1], [5, 0, 0]), row) for row in (0, 1)] == [1, 0]  # type: ignore[arg-type]


def test_a_seed_repeats_and_draws_follow_the_probabilities() -> None:
    result = Logits([0.0, np.log(3.0), -1e9])

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(request(temperature=1.0, seed=seed))
        return [sampler.choose(result, 0) for _ in range(4000)]  # type: ignore[arg-type]

    first = draws(7)
    assert first == draws(7)
    assert first != draws(8)
    assert set(first) == {0, 1}
    assert np.mean(first) == pytest.approx(0.75, abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    result = Logits(np.log([0.5, 0.3, 0.15, 0.05]).tolist())
    for top_p, kept in ((0.4, {0}), (0.6, {0, 1}), (0.9, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        sampler = Sampler(request(temperature=1.0, top_p=top_p, seed=1))
        assert {sampler.choose(result, 0) for _ in range(500)} == kept  # type: ignore[arg-type]


def stream_of(text: str, *stop: str) -> tuple[list[str], bool]:
    """The pieces of a text given byte by byte, and whether a stop text ended it."""
    stream = TextStream(lambda token: bytes((token,)), stop)
    pieces = []
    for byte in text.encode():
        pieces.append(stream.push(byte))
        if stream.stopped:
            break
    pieces.append(stream.end())
    return pieces, stream.stopped


def test_incomplete_characters_are_held_back() -> None:
    pieces, _ = stream_of("aé€")
    assert pieces == ["a", "", "é", "", "", "€", ""]


def test_broken_characters_become_the_replacement() -> None:
    stream = TextStream(lambda token: bytes((token,)))
    assert stream.push(0xE2) == ""
    assert stream.end() == "\ufffd"


@given(text=st.text(alphabet="ab", max_size=12), stop=st.text(alphabet="ab", min_size=1, max_size=3))
def test_stop_text_is_left_out_however_it_arrives(text: str, stop: str) -> None:
    pieces, stopped = stream_of(text, stop)
    assert "".join(pieces) == text.split(stop)[0]
    assert stopped == (stop in text)


def test_the_earliest_of_several_stop_texts_counts() -> None:
    pieces, stopped = stream_of("one two three", "three", "two")
    assert ("".join(pieces), stopped) == ("one ", True)
    # what looked like a stop text and was none comes later
    assert stream_of("xab", "abc")[0] == ["x", "", "", "ab"]
