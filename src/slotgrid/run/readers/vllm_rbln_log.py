r"""The server log of vllm-rbln: ``[PFX]`` lines of the prefix-cache manager and one ``[BUCKET]`` line a decode step.

Written against vllm-rbln 0.11.1 at DEBUG level:

    [PFX] [ALLOC] REQUEST=cmpl-77aa-0-9c1d2e3f | OB_COUNT=1 OB=[5] | IB_COUNT=13 IB=[...]
    [PFX] [CACHE-HIT] REQUEST=... | OB_COUNT=1 OB=[5] | IB_COUNT=12 IB=[[...]]
    [PFX] [CACHE-PARTIAL] REQUEST=... | REUSED=0/1536 tokens (0.0%) | ...
    [PFX] [EVICTION] OB=0 | IB_COUNT=16 | FREE_BLOCKS_AFTER=1 | INACTIVE_MAPPINGS_AFTER=[1, 2, 3]
    [PFX] [FREE-REQUEST] REQUEST=... | PREEMPTION=False | OUTER_BLOCKS=[5]
    [BUCKET] request_nums=3 padded_batch_size=4

Only the order of the lines is used, never their clock. A log is read in blocks, the tagged text is found by one
compiled search over the block, and equal ``[BUCKET]`` lines in a row are one event: memory grows with the number of
requests, not with the length of the log. Bare carriage returns end a line as newlines do; line numbers in messages
count newlines only, as ``grep -n`` does.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.run.readers.names import Names
from slotgrid.run.readers.stream import Meter, Piece

STEP, ALLOC, HIT, PARTIAL, EVICT, FREE, PREEMPT, RESTART = range(8)
# the count of an eviction: 0 no line said so, 1 a line did, else what the source says it was for
EVICT_CAUSES = {"admission": 2, "padding": 3, "preemption": 4}

_TAGGED = re.compile(rb"\[(?:BUCKET|PFX)\][^\r\n]*")
# a line, and after it the same line again and again: a steady server repeats itself until its clock ticks
_LINES = re.compile(rb"([^\r\n]+[\r\n]*)((?>\1*))")
# where no bare carriage return is; several times as fast
_NEWLINE_LINES = re.compile(rb"([^\n]+\n*)((?>\1*))")
_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_BUCKET = re.compile(rb"\[BUCKET\] request_nums=(\d+) padded_batch_size=(\d+)(?!\d)")
_PFX = re.compile(rb"\[PFX\] \[([A-Z-]+)\] ?")
# every field is followed by something, so that a line cut inside a number does not pass for a whole one
_ALLOC = re.compile(rb"REQUEST=(\S+) \| OB_COUNT=(\d+) OB=\[(\d+)(?:, \d+)*\]")
_HIT = re.compile(rb"REQUEST=(\S+) \|.*?IB_COUNT=(\d+)(?=[ |])")
_PARTIAL = re.compile(rb"REQUEST=(\S+) \|.*?REUSED=(\d+)/\d+ ")
_EVICTION = re.compile(rb"OB=(\d+) \|")
_FREE = re.compile(rb"REQUEST=(\S+)(?: \| PREEMPTION=(True|False))?(?: |$)")
_START = re.compile(rb"max_num_seqs from \d+ to (\d+)|Prefix block size is set to (\d+)")
_LINE_START = re.compile(rb"\s*(?:\([^)\r\n]*\)\s*)?(?:\[vllm-rbln\]|(?:INFO|DEBUG|WARNING|ERROR)\b)")
_CLOCK = re.compile(rb"(?:DEBUG|INFO) (\d\d-\d\d \d\d:\d\d:\d\d)")
_ENGINE = re.compile(rb"\(EngineCore[^)\r\n]*pid=(\d+)\)")
_HEADS = 256
_SMALL_BYTES = 1 << 18
_HEAD_BYTES = 1 << 10
_LONGEST_LINE_BYTES = 32 << 20
_KNOWN_QUIET = {b"MAPPING-SEARCH", b"MAPPING-REMOVE", b"MAPPING-ADD", b"MAPPING-CREATE", b"CACHE-MISS"}


class LogScan:
    """What one log says, in its order. table: four numbers an event: kind, request or running, slot or bucket, count.

    requests: full request ids, by the index the events use. max_running, block_tokens: as the start-up lines say.
    bucket_lines, pfx_lines: tagged lines seen; unread: examples and counts of those that could not be read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.table = array("i")
        self.requests = Names()
        self.max_running: int | None = None
        self.block_tokens: int | None = None
        self.bucket_lines = 0
        self.pfx_lines = 0
        self.unread: dict[str, tuple[int, int]] = {}
        self.clock_back = 0
        self.cut_lines = 0
        self.cut_gzip: list[str] = []
        self.starts = 0
        self.misplaced = 0
        self.silent_evictions = 0

    @property
    def events(self) -> int:
        """Events read so far."""
        return len(self.table) // 4

    def forget_events(self) -> None:
        """Free the table, once others were made of it."""
        self.table = array("i")


def scan_log(pieces: Sequence[Path], meter: Meter | None = None) -> LogScan:
    """Read the pieces of one server's log, oldest first.

    Raises InputError naming file and line when lines of two servers are mixed or a request appears twice.
    """
    scan = _Scanner(pieces[0].name if len(pieces) == 1 else f"{pieces[-1].name} ({len(pieces)} pieces)")
    for index, path in enumerate(pieces):
        scan.piece(Piece(path), meter, last=index == len(pieces) - 1)
    double = scan.result.requests.first_double()
    if double is not None:
        raise InputError(
            f"{pieces[0].parent / scan.result.name}: {double} is admitted a second time after it had finished; "
            "the same lines appear twice (overlapping pieces?)"
        )
    return scan.result


def order_pieces(paths: Sequence[Path]) -> tuple[list[Path], bool]:
    """The pieces of a rotated log, oldest first, and whether their clocks say so.

    By the clock of their first lines; where those are equal or missing, as logrotate numbers them: the highest
    number is the oldest, the file without a number the newest.
    """
    first = {path: _first_clock(path) for path in paths}
    by_number = sorted(paths, key=_rotation, reverse=True)
    clocks = [first[path] for path in by_number]
    months = {clock[:2] for clock in clocks if clock is not None}
    # lines carry no year: from December to January the clock does not tell
    if None in clocks or len(set(clocks)) != len(clocks) or {"01", "12"} <= months:
        return by_number, False
    return sorted(by_number, key=lambda path: first[path] or ""), True


def _rotation(path: Path) -> tuple[int, str]:
    numbers = re.findall(r"\.(\d+)(?=\.|$)", path.name)
    return (int(numbers[-1]) if numbers else -1, path.name)


def _first_clock(path: Path) -> str | None:
    match = _CLOCK.search(_COLOUR.sub(b"", Piece(path).head()))
    return match[1].decode() if match else None


class _Scanner:
    def __init__(self, name: str) -> None:
        self.result = LogScan(name)
        self._bucket_of: dict[bytes, tuple[int, int] | None] = {}
        # only of what is in flight: a long log names more requests than should be held as objects
        self._index: dict[bytes, int] = {}
        self._preempted: dict[bytes, int] = {}
        self._holder: dict[int, int] = {}
        self._slot: dict[int, int] = {}
        self._rest = b""
        self._line = 0
        self._path = Path(name)
        self._clock = b""
        self._engines: list[bytes] = []
        self._handlers: dict[bytes, Callable[[bytes], bool]] = {
            b"ALLOC": self._alloc,
            b"CACHE-HIT": self._hit,
            b"CACHE-PARTIAL": self._partial,
            b"EVICTION": self._eviction,
            b"FREE-REQUEST": self._free,
        }

    def piece(self, piece: Piece, meter: Meter | None, last: bool) -> None:
        """Read one file. A line that goes on in the next piece is joined with it."""
        self._path = piece.path
        self._line = 0
        fresh = True
        for block in piece.blocks(meter):
            if fresh and self._rest:
                fresh = False
                if _LINE_START.match(_COLOUR.sub(b"", block[:256])):
                    # the piece before ended in the middle of a line that does not go on here
                    self._end(self._rest)
                    self._rest = b""
            data = self._rest + block
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if not end and len(data) > _LONGEST_LINE_BYTES:
                raise InputError(
                    f"{self._path}: line {self._line + 1}: longer than {_LONGEST_LINE_BYTES >> 20} MiB; not a text log"
                )
            self._rest = data[end:]
            if end:
                self._block(data[:end])
        if piece.cut:
            self.result.cut_gzip.append(piece.path.name)
        if last and self._rest:
            self._end(self._rest)
            self._rest = b""

    def _end(self, tail: bytes) -> None:
        """A last line without a newline: used only where nothing can be missing from it."""
        tail = _COLOUR.sub(b"", tail)
        tagged = _TAGGED.findall(tail)
        whole = [text for text in tagged if text.startswith(b"[PFX]") and text.endswith((b"]", b")"))]
        self._tagged(tail, ((text, 1) for text in whole))
        if len(whole) < len(tagged) or (not tagged and tail.strip()):
            self.result.cut_lines += 1

    def _block(self, data: bytes) -> None:
        position = 0
        for match in _START.finditer(data) if b"max_num_seqs" in data or b"Prefix block" in data else ():
            self._tagged(data, _texts(data, position, match.start()), position, match.start())
            position = match.end()
            self._startup(match)
        self._tagged(data, _texts(data, position, len(data)), position)
        self._line += data.count(b"\n")

    def _startup(self, match: re.Match[bytes]) -> None:
        if match[2]:
            self.result.block_tokens = int(match[2])
            return
        self.result.max_running = int(match[1])
        self.result.starts += 1
        if self.result.events:
            # a new process: nothing of the old one is left in its slots
            self._add(RESTART, 0, 0, 1)
            self._index.clear()
            self._preempted.clear()
            self._slot.clear()
            self._holder.clear()

    def _tagged(
        self, data: bytes, texts: Iterable[tuple[bytes, int]], position: int = 0, end: int | None = None
    ) -> None:
        """Take in the tagged texts of a block from ``position`` on, in their order, each with its repetitions."""
        if b"[PFX]" in data:
            self._heads(data, position, len(data) if end is None else end)
        for raw, times in texts:
            # colour codes are taken off what is tagged, not off the whole log
            text = _COLOUR.sub(b"", raw) if b"\x1b" in raw else raw
            if text.startswith(b"[BUCKET]"):
                self.result.bucket_lines += times
                if text not in self._bucket_of:
                    match = _BUCKET.match(text)
                    self._bucket_of[text] = (int(match[1]), int(match[2])) if match else None
                    if len(self._bucket_of) > 10_000:
                        # lines that differ in more than their two numbers
                        self._bucket_of = {text: self._bucket_of[text]}
                found = self._bucket_of[text]
                if found is None or not 1 <= found[0] <= found[1]:
                    self._not_read("[BUCKET]", data, raw, times)
                else:
                    self._step(*found, times)
            else:
                self.result.pfx_lines += times
                tag = text[7 : text.find(b"]", 7)]
                handler = self._handlers.get(tag)
                if handler is not None:
                    self._text, self._data = raw, data
                    for _ in range(times):
                        if not handler(text):
                            self._not_read(f"[PFX] [{tag.decode()}]", data, raw, 1)
                elif tag not in _KNOWN_QUIET:
                    match = _PFX.match(text)
                    self._not_read(f"[PFX] [{match[1].decode()}]" if match else "[PFX]", data, raw, times)

    def _heads(self, data: bytes, position: int, end: int) -> None:
        """What stands before the tag: the clock (does it go back?) and the engine process (more than one?)."""
        # in a large block a look here and there is enough to notice
        stride = len(data) // _HEADS if len(data) > _SMALL_BYTES else 1
        for found in _positions(data, b"[PFX]", position, end, stride):
            start = max(found - _HEAD_BYTES, 0)
            start = max(start, data.rfind(b"\n", start, found) + 1, data.rfind(b"\r", start, found) + 1)
            head = data[start:found]
            if b"\x1b" in head:
                head = _COLOUR.sub(b"", head)
            clock = _CLOCK.search(head)
            if clock is not None:
                # 12-31 to 01-01 is a new year, not a step back
                if clock[1] < self._clock and not (clock[1][:2] == b"01" and self._clock[:2] == b"12"):
                    self.result.clock_back = self.result.clock_back or self._number(data, found)
                self._clock = clock[1]
            engine = _ENGINE.search(head)
            if engine is not None and (not self._engines or self._engines[-1] != engine[1]):
                if engine[1] in self._engines:
                    raise InputError(
                        f"{self._path}: line {self._number(data, found)}: lines of two engine processes "
                        f"({self._engines[-1].decode()} and {engine[1].decode()}) are mixed; "
                        "a run directory holds the log of one server"
                    )
                self._engines.append(engine[1])

    def _number(self, data: bytes, position: int) -> int:
        return self._line + data.count(b"\n", 0, position) + 1

    def _not_read(self, tag: str, data: bytes, text: bytes, times: int) -> None:
        count, line = self.result.unread.get(tag, (0, 0))
        self.result.unread[tag] = (count + times, line or self._number(data, max(data.find(text), 0)))

    def _add(self, kind: int, first: int, second: int, count: int) -> None:
        self.result.table.extend((kind, first, second, count))

    def _step(self, running: int, bucket: int, times: int) -> None:
        table = self.result.table
        if len(table) and table[-4] == STEP and table[-3] == running and table[-2] == bucket:
            table[-1] += times
        else:
            table.extend((STEP, running, bucket, times))

    def _here(self) -> str:
        return f"{self._path}: line {self._number(self._data, max(self._data.find(self._text), 0))}"

    def _alloc(self, text: bytes) -> bool:
        match = _ALLOC.search(text)
        if match is None:
            return False
        key, slot = match[1], int(match[3])
        name = key.decode(errors="replace")
        if int(match[2]) != 1:
            raise InputError(
                f"{self._here()}: {name} takes {match[2].decode()} slots; "
                "only servers with one slot a request are modelled"
            )
        holder = self._holder.get(slot)
        if holder is not None and holder in self._slot:
            raise InputError(
                f"{self._here()}: slot {slot} is given to {name} while {self.result.requests[holder]} still holds it; "
                "lines of two servers are mixed or a piece of the log is missing"
            )
        if key in self._index:
            raise InputError(f"{self._here()}: {name} is admitted again before it was released; request ids are unique")
        index = self._preempted.pop(key, None)
        if index is None:
            index = self.result.requests.add(key)
        self._index[key] = index
        if holder is not None:
            # its prefix is gone, and no line said so
            self.result.silent_evictions += 1
            self._add(EVICT, holder, slot, 0)
        self._holder[slot] = index
        self._slot[index] = slot
        self._add(ALLOC, index, slot, len(self._slot) - 1)
        return True

    def _hit(self, text: bytes) -> bool:
        return self._lookup(HIT, _HIT.search(text))

    def _partial(self, text: bytes) -> bool:
        return self._lookup(PARTIAL, _PARTIAL.search(text))

    def _lookup(self, kind: int, match: re.Match[bytes] | None) -> bool:
        if match is None:
            return False
        index = self._index.get(match[1])
        if index is None:
            self.result.misplaced += 1
        else:
            self._add(kind, index, 0, int(match[2]))
        return True

    def _eviction(self, text: bytes) -> bool:
        match = _EVICTION.search(text)
        if match is None:
            return False
        slot = int(match[1])
        holder = self._holder.pop(slot, None)
        if holder is not None and holder in self._slot:
            raise InputError(
                f"{self._here()}: slot {slot} is evicted while {self.result.requests[holder]} still runs in it; "
                "lines of two servers are mixed or a piece of the log is missing"
            )
        if holder is None:
            self.result.misplaced += 1
        self._add(EVICT, -1 if holder is None else holder, slot, 1)
        return True

    def _free(self, text: bytes) -> bool:
        match = _FREE.search(text)
        if match is None:
            return False
        index = self._index.get(match[1])
        if index is None:
            self.result.misplaced += 1
            return True
        del self._index[match[1]]
        slot = self._slot.pop(index)
        if match[2] == b"True":
            self._preempted[match[1]] = index
        self._add(PREEMPT if match[2] == b"True" else FREE, index, slot, 1)
        return True


def _texts(data: bytes, position: int, end: int) -> Iterator[tuple[bytes, int]]:
    """What is tagged in a stretch of lines, from the tag to the end of the line, and how often it stands there."""
    lines = _LINES if b"\r" in data else _NEWLINE_LINES
    for line, again in lines.findall(data, position, end):
        at = line.find(b"[PFX]")
        before = line.find(b"[BUCKET]", 0, len(line) if at < 0 else at)
        at = at if before < 0 else before
        if at >= 0:
            yield line[at:].rstrip(b"\r\n"), 1 + len(again) // len(line) if again else 1


def _positions(data: bytes, what: bytes, position: int, end: int, stride: int) -> Iterator[int]:
    """Where ``what`` stands, at least ``stride`` bytes apart."""
    found = data.find(what, position, end)
    while found >= 0:
        yield found
        found = data.find(what, found + stride, end)
