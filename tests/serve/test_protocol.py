"""Requests of the API: what is read, what is refused and how."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slotgrid.serve.protocol import ApiError, Generation, chat, completion, encode_json, parse_body
from slotgrid.serve.tokens import TinyTokenizer

TOKENIZER = TinyTokenizer(8192)


def read(**data: Any) -> Generation:
    return completion({"prompt": "hello", **data}, TOKENIZER, 8192, 1024)


def read_chat(**data: Any) -> Generation:
    return chat({"messages": [{"role": "user", "content": "hi"}], **data}, TOKENIZER, 1024)


def test_defaults() -> None:
    got = read()
    assert got.prompt == tuple(b"hello")
    assert (got.max_tokens, got.temperature, got.top_p, got.seed, got.stop) == (16, 1.0, 1.0, None, ())
    assert (got.stream, got.include_usage, got.ignore_eos, got.return_token_ids) == (False, False, False, False)


def test_prompt_forms() -> None:
    for form in ([1, 2, 3], [[1, 2, 3]]):
        assert read(prompt=form).prompt == (1, 2, 3)
    assert read(prompt=["hello"]).prompt == tuple(b"hello")


def test_chat_takes_the_room_that_is_left_and_text_parts() -> None:
    got = read_chat()
    assert got.max_tokens == 1024 - len(got.prompt)
    assert read_chat(max_completion_tokens=3, max_tokens=5).max_tokens == 3
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert read_chat(messages=[{"role": "user", "content": parts}]).prompt == got.prompt


def test_what_asks_for_nothing_is_accepted() -> None:
    # as vllm bench serve sends it
    got = read(
        repetition_penalty=1.0,
        logprobs=None,
        n=1,
        stream=True,
        stream_options={"include_usage": True},
        ignore_eos=True,
        temperature=0,
        max_tokens=128,
        seed=0,
        user="u",
        add_special_tokens=True,
    )
    assert (got.include_usage, got.ignore_eos, got.temperature, got.max_tokens) == (True, True, 0.0, 128)


@pytest.mark.parametrize(
    ("data", "param", "words"),
    [
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": ""}, "prompt", "prompt is empty"),
        ({"prompt": []}, "prompt", "non-empty list"),
        ({"prompt": 5}, "prompt", "text or a non-empty list"),
        ({"prompt": [1, "a"]}, "prompt", "list of token ids"),
        ({"prompt": [True]}, "prompt", "list of token ids"),
        ({"prompt": ["a", "b"]}, "prompt", "one prompt"),
        ({"prompt": [8192]}, "prompt", "token id 8192; allowed: 0 to 8191"),
        ({"prompt": [-1]}, "prompt", "token id -1"),
        ({"prompt": "\ud800"}, "prompt", "lone surrogate"),
        ({"prompt": [1] * 1024}, "prompt", "the prompt is 1024 tokens; the slot length is 1024"),
        ({"prompt": "x" * 1024}, "prompt", "the prompt is 1024 tokens"),
        ({"prompt": "x" * 10_000_000}, "prompt", "at least 2000000 tokens"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -5}, "max_tokens", "at least 1"),
        ({"max_tokens": "8"}, "max_tokens", "whole number"),
        ({"max_tokens": 1.5}, "max_tokens", "whole number"),
        ({"max_tokens": True}, "max_tokens", "whole number"),
        ({"max_tokens": 1020}, "max_tokens", "the prompt is 5 tokens; the slot length is 1024"),
        ({"max_tokens": 10**30}, "max_tokens", "slot length"),
        ({"temperature": "hot"}, "temperature", "must be a number"),
        ({"temperature": -1}, "temperature", "allowed: 0 to 2"),
        ({"temperature": float("inf")}, "temperature", "must be a number"),
        ({"top_p": 0}, "top_p", "allowed"),
        ({"seed": 2**63}, "seed", "64-bit"),
        ({"seed": 0.5}, "seed", "64-bit"),
        ({"stop": 7}, "stop", "non-empty text"),
        ({"stop": [""]}, "stop", "non-empty text"),
        ({"stop": ["x"] * 17}, "stop", "up to 16"),
        ({"stop": "x" * 257}, "stop", "256 characters"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only allowed with stream"),
        ({"stream": True, "stream_options": 1}, "stream_options", "must be an object"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage", "true or false"),
        ({"n": 2}, "n", "not supported"),
        ({"echo": True}, "echo", "not supported"),
        ({"logprobs": 3}, "logprobs", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
    ],
)
def test_refused(data: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        read(**data)
    error = caught.value
    assert error.status == 400
    assert error.body["error"]["param"] == param
    assert set(error.body["error"]) == {"message", "type", "param", "code"}
    assert len(error.body["error"]["message"]) < 200


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "non-empty list"),
        ([], "non-empty list"),
        ("hi", "non-empty list"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"role": "user"}], r"messages\[0\].content must be text"),
        ([{"content": "x"}], r"messages\[0\].role"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only parts of type text"),
        ([{"role": "user", "content": "x" * 100_000}], "at least 20000 tokens"),
    ],
)
def test_refused_messages(messages: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        read_chat(messages=messages)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"max_tokens": NaN}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_json_object(content: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(content)
    assert caught.value.status == 400


def test_what_a_client_sent_can_always_be_sent_back() -> None:
    assert json.loads(encode_json({"x": "\ud800é"})) == {"x": "\ud800é"}
