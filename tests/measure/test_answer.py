"""Streamed answers: whatever the pieces the bytes arrive in, the same tokens, times and usage."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgrid.measure.answer import Answer, error_text

VLLM = Path(__file__).parents[1] / "data" / "vllm_0.22.0"


def stream(*values: object) -> bytes:
    return b"".join(b"data: " + (v if isinstance(v, bytes) else json.dumps(v).encode()) + b"\n\n" for v in values)


def piece(text: str, ids: list[int] | None = None, reason: str | None = None) -> dict[str, object]:
    choice: dict[str, object] = {"text": text, "finish_reason": reason}
    return {"id": "cmpl-a", "choices": [choice if ids is None else {**choice, "token_ids": ids}], "usage": None}


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}
WHOLE = stream(
    piece(" a", [1]), piece("", [2]), piece(" bé", [3], "length"), {"choices": [], "usage": USAGE}, b"[DONE]"
)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=8))
def test_any_split_of_the_bytes_gives_the_same_answer(cuts: list[int]) -> None:
    answer = Answer()
    edges = [0, *sorted(cuts), len(WHOLE)]
    for number, (begin, end) in enumerate(pairwise(edges)):
        answer.feed(WHOLE[begin:end], float(number))
    assert answer.ended
    answer.close()
    assert (answer.text, answer.token_ids, answer.error) == (" a bé", [1, 2, 3], None)
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (9, 3, 0)
    assert (answer.request_id, answer.finish_reason) == ("cmpl-a", "length")
    assert len(answer.token_times_s) == 3
    assert answer.token_times_s == sorted(answer.token_times_s)


@given(st.lists(st.integers(0, 3 * len(WHOLE)), max_size=8), st.booleans())
def test_events_are_lines_of_data_whatever_the_line_breaks(cuts: list[int], crlf: bool) -> None:
    content = b": keep-alive\n\n" + WHOLE.replace(b"\n\n", b"\n\n: keep-alive\n\n: keep-alive\n\n")
    content = content.replace(b"\n", b"\r\n") if crlf else content
    answer = Answer()
    for begin, end in pairwise([0, *sorted(cuts), len(content)]):
        answer.feed(content[begin:end], 0.0)
    assert (answer.events, answer.ended) == (5, True)
    answer.close()
    assert (answer.token_ids, answer.error, answer.output_tokens) == ([1, 2, 3], None, 3)


def test_pieces_without_ids_count_but_not_an_empty_last_one() -> None:
    answer = Answer()
    answer.feed(stream(piece(" a"), piece(""), piece("", reason="stop"), b"[DONE]"), 1.0)
    answer.close()
    assert (answer.token_ids, answer.output_tokens, answer.finish_reason) == (None, 2, "stop")
    # nobody said how much was cached: not observable
    assert answer.cached_tokens is None


@pytest.mark.parametrize(
    ("texts", "told", "times"),
    [
        (["", " a", " b"], 2, [1.0, 2.0]),
        (["", " a", " b"], None, [1.0, 2.0]),
        # a token without text is one
        (["", " a", " b"], 3, [0.0, 1.0, 2.0]),
        (["", "", " a"], 2, [1.0, 2.0]),
        ([" a", "", " b"], None, [0.0, 1.0, 2.0]),
        ([" a", "", " b"], 2, [0.0, 1.0, 2.0]),
    ],
)
def test_an_empty_piece_that_opens_the_answer_is_no_token(
    texts: list[str], told: int | None, times: list[float]
) -> None:
    answer = Answer()
    for number, text in enumerate(texts):
        answer.feed(stream(piece(text)), float(number))
    if told is not None:
        answer.feed(stream({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": told}}), 8.0)
    answer.feed(stream(b"[DONE]"), 9.0)
    # closed once more when its connection is
    answer.close()
    answer.close()
    assert answer.token_times_s == times
    assert answer.output_tokens == (len(times) if told is None else told)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"object": "error", "message": "the model  is\nasleep", "code": 40303}, "the model is asleep"),
        ({"error": {"message": "no"}}, "no"),
        ({"object": "text_completion", "error": None, "choices": []}, "the server sent JSON in one piece"),
        ([1], "the server sent JSON in one piece"),
    ],
)
def test_json_in_one_piece_is_no_stream(content: object, said: str) -> None:
    answer = Answer()
    for line in json.dumps(content, indent=2).splitlines(keepends=True):
        answer.feed(line.encode(), 1.0)
    answer.close()
    assert (answer.streamed, answer.error, answer.ended) == (False, said, False)


def test_an_error_object_in_a_stream_keeps_its_message() -> None:
    answer = Answer()
    answer.feed(stream({"object": "error", "message": "the engine is gone", "error": None}), 1.0)
    answer.close()
    assert (answer.streamed, answer.error, answer.token_times_s) == (True, "the engine is gone", [])


@given(st.integers(0, 4), st.integers(0, 30))
def test_blanks_before_the_end_mark_are_allowed(blanks: int, cut: int) -> None:
    content = b"data: {}\n\ndata:" + b" " * blanks + b"[DONE]\n\n"
    answer = Answer()
    answer.feed(content[:cut], 1.0)
    answer.feed(content[cut:], 2.0)
    assert (answer.ended, answer.events) == (True, 2)


def test_an_error_that_is_null_is_none() -> None:
    answer = Answer()
    answer.feed(stream({**piece(" a", [1]), "error": None}, {"error": None}, b"[DONE]"), 1.0)
    answer.close()
    assert (answer.error, answer.token_ids) == (None, [1])


def test_several_tokens_in_one_piece_arrived_together() -> None:
    answer = Answer()
    answer.feed(stream(piece(" a b", [1, 2])), 0.5)
    answer.feed(stream(piece(" c", [3])), 0.75)
    answer.close()
    assert answer.token_times_s == [0.5, 0.5, 0.75]


def test_an_end_mark_that_was_generated_is_not_one() -> None:
    answer = Answer()
    answer.feed(stream(piece("data: [DONE]", [1]), piece("\ndata: [DONE]\n\n", [2])), 1.0)
    assert not answer.ended
    answer.feed(stream(b"[DONE]"), 2.0)
    assert answer.ended


def test_a_line_that_is_cut_off_is_left_out() -> None:
    answer = Answer()
    answer.feed(stream(piece(" a", [1]), piece(" b", [2]))[:-20], 1.0)
    answer.close()
    assert (answer.token_ids, answer.error, answer.ended) == ([1], None, False)


def test_errors_and_nonsense_in_a_stream_are_named() -> None:
    for content, said in (
        (stream({"error": {"message": "engine  died\nbadly"}}), "engine died badly"),
        (b"data: {nonsense\n\n", "not JSON"),
        (b"data: [1]\n\n", "not an object"),
    ):
        answer = Answer()
        answer.feed(content, 0.0)
        answer.close()
        assert said in (answer.error or "")
    answer = Answer()
    # of a wrong shape, but harmless: nothing is taken from it
    answer.feed(stream({"choices": 3, "usage": [], "id": 4}, {"choices": [7, {"text": 1, "token_ids": ["x"]}]}), 0.0)
    answer.close()
    assert (answer.error, answer.token_ids, answer.usage, answer.request_id) == (None, None, None, None)


@given(st.lists(st.integers(0, 2000), max_size=8))
def test_answers_as_vllm_sends_them(cuts: list[int]) -> None:
    """Recorded (tests/data): the first piece holds the prompt's ids, too, a prompt that hit nothing has no details, and
    an id above the vocabulary is refused inside the stream."""
    read = {}
    for name in ("miss", "hit", "refused"):
        content = (VLLM / f"{name}.sse").read_bytes()
        answer = read[name] = Answer()
        for begin, end in pairwise([0, *sorted(cuts), len(content)]):
            answer.feed(content[begin:end], float(begin))
        assert answer.ended
        answer.close()
    for name, cached in (("miss", None), ("hit", 32)):
        answer = read[name]
        assert (answer.token_ids, answer.output_tokens, answer.finish_reason) == ([1940] * 6, 6, "length")
        assert (answer.prompt_tokens, answer.cached_tokens, answer.error) == (40, cached, None)
        assert (len(answer.token_times_s), answer.events, answer.model) == (6, 8, "stand-in")
        assert (answer.request_id or "").startswith("cmpl-")
    refused = read["refused"]
    assert (refused.error, refused.token_times_s) == ("Token id 31999 is out of vocabulary", [])


def test_an_error_page_becomes_one_short_line() -> None:
    assert error_text({"error": {"message": "no"}}) == "no"
    assert error_text("<html>\n big\t page") == "<html> big page"
    assert len(error_text("x" * 5000)) == 200
