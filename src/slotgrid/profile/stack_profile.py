"""StackProfile: what was measured of one model on one serving stack, read from TOML with provenance."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError, UnmeasuredError
from slotgrid.profile.costs import CompileModel, CostModel, DecodeCost, KvFacts, MemoryModel, PrefillCost
from slotgrid.profile.finding import Finding, read_findings
from slotgrid.profile.operating import OperatingCosts, operating_clock
from slotgrid.profile.quantity import Quantity, quantity_of, read_quantity, read_range
from slotgrid.profile.scatter import Scatter, read_scatter
from slotgrid.toml_reader import Table, parse_toml

FORMAT = "slotgrid-profile/1"
RULE_NAMES = ("real", "paper")
CLOCKS = ("price", "operating")


@dataclass(frozen=True)
class StackProfile:
    """Costs and rules of a model on a stack, each value with source, kind and range.

    price: the cost that is summed as device time. clock: the cost that moves time; the price when not given.
    operating: costs measured in running servers per configuration, a clock on request (:meth:`clocked`).
    clock_text: where the clock comes from when it was chosen; "" otherwise.
    Parts that nobody measured are None; asking for them with the ``needed_`` methods raises UnmeasuredError.
    findings: what a calibration saw besides costs, and what it could not decide.
    """

    id: str
    description: str
    stack: str
    model_id: str
    hardware: str
    software: str
    rules: str
    turnaround_s: Quantity | None
    price: CostModel
    clock: CostModel
    kv: KvFacts
    compile: CompileModel | None
    memory: MemoryModel | None
    sha256: str
    provenance: tuple[tuple[str, Quantity], ...]
    findings: tuple[Finding, ...] = ()
    operating: tuple[OperatingCosts, ...] = ()
    scatter: Scatter | None = None
    clock_text: str = ""

    def __post_init__(self) -> None:
        if self.price.prefill.cached_excess_s is not None:
            raise InputError(f"profile {self.id}: cached_excess belongs to a clock, not to the price")

    def clocked(self, clock: str, config: ServingConfig | None = None, *, without: Iterable[str] = ()) -> StackProfile:
        """The same profile with another clock: ``price`` (device time and clock are one) or ``operating``.

        config: whose operating costs; None takes the mean of all measured configurations. without: corrections to
        leave out (:func:`profile.operating.operating_clock`). Raises InputError for an unknown name.
        """
        if clock not in CLOCKS:
            raise InputError(f"clock: {clock!r}; allowed: {', '.join(CLOCKS)}")
        if clock == "price":
            if tuple(without):
                raise InputError("without: leaves out corrections of the operating clock; choose clock operating")
            return replace(self, clock=self.price, clock_text="price")
        costs, text = operating_clock(self.operating, self.price, config, without)
        return replace(self, clock=costs, clock_text=text)

    def needed_compile(self) -> CompileModel:
        """The compile cost model. Raises UnmeasuredError where the profile has none."""
        if self.compile is None:
            raise UnmeasuredError(f"profile {self.id}: compile cost is not measured; add [compile] or drop the budget")
        return self.compile

    def needed_memory(self) -> MemoryModel:
        """The device memory model. Raises UnmeasuredError where the profile has none."""
        if self.memory is None:
            raise UnmeasuredError(f"profile {self.id}: device memory is not measured; add [memory] or drop the budget")
        return self.memory

    def needed_scatter(self) -> Scatter:
        """What differs between repeats; raises UnmeasuredError when nobody measured it."""
        if self.scatter is None:
            raise UnmeasuredError(
                f"profile {self.id}: the scatter between repeats is not measured; add [scatter] to run ensembles"
            )
        return self.scatter

    def to_dict(self) -> dict[str, Any]:
        """Identity and every value with its provenance, as JSON values."""
        return {
            "id": self.id,
            "sha256": self.sha256,
            "description": self.description,
            "stack": self.stack,
            "model_id": self.model_id,
            "hardware": self.hardware,
            "software": self.software,
            "rules": self.rules,
            "values": [{"name": name, **q.to_dict()} for name, q in self.provenance],
            "findings": [finding.to_dict() for finding in self.findings],
            "ranges": self._ranges(),
            "operating": [
                {"name": own.name, "buckets": list(own.buckets), "estimate": own.estimate} for own in self.operating
            ],
            "kv": {
                "slot_tokens": self.kv.slot_tokens,
                "block_tokens": self.kv.block_tokens,
                "generated_reusable": self.kv.generated_reusable,
                "source": self.kv.source,
            },
            "prefill_chunk_tokens": self.price.prefill.chunk_tokens,
        }

    def _ranges(self) -> dict[str, str | None]:
        """Where each group of values was measured; None is not stated."""
        found = {
            "price.decode.running": self.price.decode.running_range,
            "price.prefill.computed_tokens": self.price.prefill.tokens_range,
            "compile.buckets": None if self.compile is None else self.compile.buckets_range,
            "memory.slots": None if self.memory is None else self.memory.slots_range,
        }
        for own in self.operating:
            found[f"operating[{own.name}].decode.running"] = own.cost.decode.running_range
            found[f"operating[{own.name}].decode.context_tokens"] = own.cost.decode.context_range
            found[f"operating[{own.name}].prefill.computed_tokens"] = own.cost.prefill.tokens_range
        fixed = self.price.decode.fixed_s
        texts = {name: None if span is None else str(span) for name, span in found.items()}
        return {"price.decode.fixed, buckets": f"{fixed[0][0]} to {fixed[-1][0]}", **texts}

    def __repr__(self) -> str:
        return f"StackProfile({self.id!r}: {self.model_id} on {self.hardware}, rules {self.rules})"


def built_in_profiles() -> list[str]:
    """Ids of the profiles inside the package, sorted."""
    folder = resources.files("slotgrid.profile") / "data"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_profile(name: str | Path) -> StackProfile:
    """A built-in profile by id, or a TOML file by path. Raises InputError naming file and key."""
    return profile_from_toml(*profile_bytes(name))


def profile_bytes(name: str | Path) -> tuple[bytes, str]:
    """The TOML of a profile as :func:`load_profile` finds it, and the name of its file."""
    text = str(name)
    if text in built_in_profiles():
        entry = resources.files("slotgrid.profile") / "data" / f"{text}.toml"
        return entry.read_bytes(), f"{text}.toml"
    if not text.endswith(".toml") and not Path(text).exists():
        raise InputError(
            f"profile {text!r}: no such built-in profile or file; built in: {', '.join(built_in_profiles())}"
        )
    return files.read_bytes(text), text


def profile_from_toml(data: bytes, where: str) -> StackProfile:
    """Parse profile TOML (format: docs/formats.md). Raises InputError naming ``where`` and the key."""
    top = parse_toml(data, where)
    stated = top.text("format")
    if stated != FORMAT:
        raise InputError(f"{top.at('format')} is {stated!r}; this version reads {FORMAT!r}")
    seen: list[tuple[str, Quantity]] = []
    price = _cost_model(top.table("price"), seen)
    profile = StackProfile(
        id=top.text("id"),
        description=top.text("description", ""),
        stack=top.text("stack", ""),
        model_id=top.text("model_id", ""),
        hardware=top.text("hardware", ""),
        software=top.text("software", ""),
        rules=top.choice("rules", RULE_NAMES, "real"),
        turnaround_s=_noted(top, "turnaround", "time", seen) if top.has("turnaround") else None,
        price=price,
        clock=_cost_model(top.table("clock"), seen, clock=True) if top.has("clock") else price,
        kv=_kv_facts(top.table("kv"), seen),
        operating=_operating(top, price, seen),
        scatter=read_scatter(top.table("scatter"), seen) if top.has("scatter") else None,
        compile=_compile_model(top.table("compile"), seen) if top.has("compile") else None,
        memory=_memory_model(top.table("memory"), seen) if top.has("memory") else None,
        sha256=hashlib.sha256(data).hexdigest(),
        provenance=tuple(seen),
        findings=read_findings(top),
    )
    top.finish()
    return profile


def _noted(
    table: Table, key: str, dimension: str, seen: list[tuple[str, Quantity]], least: float | None = 0.0
) -> Quantity:
    quantity = read_quantity(table, key, dimension, least)
    seen.append((f"{table.path}.{key}".lstrip("."), quantity))
    return quantity


def _optional(table: Table, key: str, dimension: str, seen: list[tuple[str, Quantity]]) -> Quantity | None:
    return _noted(table, key, dimension, seen) if table.has(key) else None


def _cost_model(table: Table, seen: list[tuple[str, Quantity]], *, clock: bool = False) -> CostModel:
    """A price, or with ``clock`` a cost that may also hold what only moves time."""
    decode = table.table("decode")
    fixed = []
    for entry in decode.tables("fixed"):
        size = entry.whole("bucket", 1)
        quantity = quantity_of(entry, "time")
        entry.finish()
        fixed.append((size, quantity))
        seen.append((f"{decode.path}.fixed[bucket {size}]", quantity))
    if not fixed:
        raise UnmeasuredError(f"{decode.at('fixed')} is empty; at least one measured bucket is needed")
    for (a, _), (b, _) in itertools.pairwise(fixed):
        if b <= a:
            raise InputError(f"{decode.at('fixed')}: bucket {b} after {a}; buckets must ascend and be unique")
    decode_cost = DecodeCost(
        tuple(fixed),
        _noted(decode, "base", "time", seen, None),
        _noted(decode, "per_request", "time", seen, None),
        _optional(decode, "per_context_token", "time", seen),
        read_range(decode, "running_range"),
        read_range(decode, "context_range"),
        _optional(decode, "residual", "time", seen),
    )
    decode.finish()
    prefill = table.table("prefill")
    prefill_cost = PrefillCost(
        prefill.whole("chunk_tokens", 1),
        _noted(prefill, "per_chunk", "time", seen),
        _noted(prefill, "per_token", "time", seen),
        _optional(prefill, "constant", "time", seen),
        read_range(prefill, "computed_tokens_range"),
    )
    if clock and prefill.has("cached_excess"):
        prefill_cost = replace(
            prefill_cost,
            cached_excess_s=_noted(prefill, "cached_excess", "time", seen),
            cached_excess_tokens=prefill.whole("cached_excess_up_to_tokens", 1),
        )
    prefill.finish()
    table.finish()
    return CostModel(decode_cost, prefill_cost)


def _operating(top: Table, price: CostModel, seen: list[tuple[str, Quantity]]) -> tuple[OperatingCosts, ...]:
    found: list[OperatingCosts] = []
    for entry in top.tables("operating") if top.has("operating") else []:
        name, buckets = entry.text("name"), entry.wholes("buckets", 1)
        estimate = entry.text("estimate", "")
        if any(name == other.name or buckets == other.buckets for other in found):
            raise InputError(f"{entry.at()}: {name!r} or its buckets appear twice")
        own: list[tuple[str, Quantity]] = []
        cost = _cost_model(entry, own, clock=True)
        # named by configuration, not by position
        seen += [(key.replace(entry.path, f"operating[{name}]", 1), quantity) for key, quantity in own]
        if cost.prefill.chunk_tokens != price.prefill.chunk_tokens:
            raise InputError(
                f"{entry.at('prefill.chunk_tokens')} is {cost.prefill.chunk_tokens}; the price has "
                f"{price.prefill.chunk_tokens}"
            )
        missing = sorted(set(buckets) - {size for size, _ in cost.decode.fixed_s})
        if missing:
            raise InputError(f"{entry.at('decode.fixed')}: bucket {missing[0]} of buckets is missing")
        found.append(OperatingCosts(name, buckets, cost, estimate))
    return tuple(found)


def _kv_facts(table: Table, seen: list[tuple[str, Quantity]]) -> KvFacts:
    facts = KvFacts(
        table.whole("slot_tokens", 1),
        table.whole("block_tokens", 1),
        _optional(table, "bytes_per_token", "bytes", seen),
        table.flag("generated_reusable"),
        table.flag("inner_blocks", False),
        table.text("source", ""),
    )
    if facts.inner_blocks and facts.slot_tokens % facts.block_tokens:
        raise InputError(
            f"{table.at('inner_blocks')} is true, but slot_tokens {facts.slot_tokens} is not a multiple of "
            f"block_tokens {facts.block_tokens}"
        )
    if facts.inner_blocks and facts.generated_reusable:
        raise InputError(f"{table.at('inner_blocks')} and generated_reusable are both true; only one is modelled")
    table.finish()
    return facts


def _compile_model(table: Table, seen: list[tuple[str, Quantity]]) -> CompileModel:
    model = CompileModel(
        _noted(table, "base", "time", seen),
        _noted(table, "per_graph", "time", seen),
        _noted(table, "artifact_base", "size", seen),
        _noted(table, "artifact_per_bucket", "size", seen),
        read_range(table, "buckets_range"),
    )
    table.finish()
    return model


def _memory_model(table: Table, seen: list[tuple[str, Quantity]]) -> MemoryModel:
    model = MemoryModel(
        table.whole("devices", 1),
        _noted(table, "device", "size", seen),
        _noted(table, "fixed", "size", seen),
        _noted(table, "fixed_fullest", "size", seen),
        _noted(table, "per_slot", "size", seen),
        read_range(table, "slots_range"),
    )
    table.finish()
    return model
