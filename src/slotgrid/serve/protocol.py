"""Requests of the OpenAI API as checked values, and its errors. No sockets, no engine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.serve.tokens import Tokenizer

_MOST_STOPS = 16
_LONGEST_STOP = 256
# accepted when they ask for nothing: the value that means "off"
_OFF: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "tools": ([],),
    "prompt_logprobs": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
}


class ApiError(Exception):
    """An answer that is an error, in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Generation:
    """One checked request. Lengths in tokens; ``max_tokens`` fits the slot together with the prompt."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool


def parse_body(content: bytes) -> dict[str, Any]:
    """The JSON object of a request body, or ApiError 400."""
    try:
        data = files.parse_json(content, "body")
    except InputError as error:
        raise ApiError(400, f"request {error}") from None
    except ValueError as error:  # e.g. a number of thousands of digits
        raise ApiError(400, f"request body: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "request body: expected a JSON object")
    return data


def completion(data: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: int, max_seq_len: int) -> Generation:
    """Check a request of ``/v1/completions``; ``prompt`` is text or token ids. Raises ApiError."""
    value = data.get("prompt")
    if value is None:
        raise ApiError(400, "prompt is missing; text or a list of token ids", param="prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        prompt = _encode(value, tokenizer, max_seq_len)
    elif isinstance(value, list) and value and all(_is_whole(item) for item in value):
        outside = next((item for item in value if not 0 <= item < vocabulary), None)
        if outside is not None:
            raise ApiError(400, f"prompt holds token id {outside}; allowed: 0 to {vocabulary - 1}", param="prompt")
        prompt = value
    else:
        raise ApiError(400, "prompt must be text or a non-empty list of token ids, one prompt", param="prompt")
    return _generation(data, prompt, max_seq_len, default_max_tokens=16, names=("max_tokens",))


def chat(data: Mapping[str, Any], tokenizer: Tokenizer, max_seq_len: int) -> Generation:
    """Check a request of ``/v1/chat/completions``. Raises ApiError."""
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a non-empty list", param="messages")
    checked = [_message(message, i) for i, message in enumerate(messages)]
    _refuse_longer(sum(len(m["content"].encode()) for m in checked), tokenizer, max_seq_len, "messages")
    prompt = tokenizer.encode_chat(checked)
    names = ("max_completion_tokens", "max_tokens")
    return _generation(data, prompt, max_seq_len, default_max_tokens=None, names=names)


def encode_json(value: Any) -> bytes:
    """Compact ASCII JSON, so that no text a client sent can be impossible to send back."""
    return json.dumps(value, separators=(",", ":")).encode()


def _message(message: Any, index: int) -> dict[str, str]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise ApiError(400, f"{where} must be an object with role and content", param="messages")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ApiError(400, f"{where}.role must be text such as user, assistant or system", param="messages")
    if isinstance(content, list):
        parts = []
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ApiError(400, f"{where}.content: only parts of type text can be read", param="messages")
            parts.append(part["text"])
        content = "".join(parts)
    if not isinstance(content, str):
        raise ApiError(400, f"{where}.content must be text", param="messages")
    _check_unicode(content, f"{where}.content", "messages")
    _check_unicode(role, f"{where}.role", "messages")
    return {"role": role, "content": content}


def _encode(text: str, tokenizer: Tokenizer, max_seq_len: int) -> list[int]:
    _check_unicode(text, "prompt", "prompt")
    if not text:
        raise ApiError(400, "prompt is empty; at least one token is needed", param="prompt")
    _refuse_longer(len(text.encode()), tokenizer, max_seq_len, "prompt")
    return tokenizer.encode(text)


def _check_unicode(text: str, where: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{where} is not valid Unicode (a lone surrogate)", param=param) from None


def _refuse_longer(size_bytes: int, tokenizer: Tokenizer, max_seq_len: int, param: str) -> None:
    # decided before a long text is tokenized
    least = -(-size_bytes // tokenizer.longest_token_bytes)
    if least >= max_seq_len:
        raise ApiError(
            400,
            f"{param} is at least {least} tokens; {_slot(max_seq_len)}",
            param=param,
            code="context_length_exceeded",
        )


def _generation(
    data: Mapping[str, Any],
    prompt: Sequence[int],
    max_seq_len: int,
    *,
    default_max_tokens: int | None,
    names: tuple[str, ...],
) -> Generation:
    for key, off in _OFF.items():
        value = data.get(key)
        if value is not None and value not in off:
            raise ApiError(400, f"{key} is not supported by this server", param=key, code="unsupported_parameter")
    room = max_seq_len - len(prompt)
    if room < 1:
        raise ApiError(
            400,
            f"the prompt is {len(prompt)} tokens; {_slot(max_seq_len)}",
            param="prompt",
            code="context_length_exceeded",
        )
    name = next((key for key in names if data.get(key) is not None), names[-1])
    asked = data.get(name)
    if asked is None:
        max_tokens = room if default_max_tokens is None else min(default_max_tokens, room)
    elif not _is_whole(asked) or asked < 1:
        raise ApiError(400, f"{name} is {_shown(asked)}; allowed: a whole number of at least 1", param=name)
    elif asked > room:
        raise ApiError(
            400,
            f"{name} is {_shown(asked)} and the prompt is {len(prompt)} tokens; {_slot(max_seq_len)}",
            param=name,
            code="context_length_exceeded",
        )
    else:
        max_tokens = asked
    seed = data.get("seed")
    if seed is not None and (not _is_whole(seed) or abs(seed) >= 2**63):
        raise ApiError(400, f"seed is {_shown(seed)}; allowed: a 64-bit whole number", param="seed")
    stream = _flag(data, "stream")
    options = data.get("stream_options")
    if options is not None:
        if not stream:
            raise ApiError(400, "stream_options is only allowed with stream true", param="stream_options")
        if not isinstance(options, Mapping):
            raise ApiError(400, "stream_options must be an object", param="stream_options")
    return Generation(
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        temperature=_number(data, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(data, "top_p", 1.0, 1e-9, 1.0),
        seed=seed,
        stop=_stop(data.get("stop")),
        ignore_eos=_flag(data, "ignore_eos"),
        stream=stream,
        include_usage=options is not None and _flag(options, "include_usage"),
        return_token_ids=_flag(data, "return_token_ids"),
    )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ApiError(400, "stop must be a non-empty text or a list of such", param="stop")
    if len(texts) > _MOST_STOPS or any(len(text) > _LONGEST_STOP for text in texts):
        raise ApiError(
            400, f"stop: allowed are up to {_MOST_STOPS} texts of up to {_LONGEST_STOP} characters", param="stop"
        )
    return tuple(texts)


def _flag(data: Mapping[str, Any], key: str) -> bool:
    value = data.get(key)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{key} must be true or false", param=key)
    return bool(value)


def _number(data: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = data.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ApiError(400, f"{key} must be a number", param=key)
    if not low <= value <= high:
        raise ApiError(400, f"{key} is {_shown(value)}; allowed: {low:g} to {high:g}", param=key)
    return float(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _slot(max_seq_len: int) -> str:
    return f"the slot length is {max_seq_len} tokens for prompt and output together"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
