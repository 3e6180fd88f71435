"""Every table of a study, made once: as CSV with all digits, and as text for page and console."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotgrid.report.diagnose_table import Grid
from slotgrid.study.decide import EXPLORATORY
from slotgrid.study.log import CONTINUED, OTHER_ARMS, REFUSED
from slotgrid.study.overview import Overview, SetOverview
from slotgrid.study.records import Record
from slotgrid.study.resample import LEAST_VALUES
from slotgrid.study.saturation import Saturation
from slotgrid.study.settings import SIMULATED, STEADY

Text = Callable[[Any], str]
NONE = "–"


@dataclass(frozen=True)
class Column:
    """key: name in the CSV. header: name for people. text: a value as people read it."""

    key: str
    header: str
    text: Text = str
    right: bool = True


@dataclass(frozen=True)
class DataTable:
    """name: stem of its CSV file. note: a sentence under the title, or empty."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    note: str = ""

    def grid(self, only: str | None = None, keys: Sequence[str] | None = None) -> Grid | None:
        """The table as text, None without rows; ``only`` keeps the rows of one data set, ``keys`` these columns."""
        rows = [row for row in self.rows if only is None or row["set"] == only]
        columns = [c for c in self.columns if (only is None or c.key != "set") and (keys is None or c.key in keys)]
        # a column that is empty everywhere says nothing to people
        columns = [c for c in columns if any(row[c.key] is not None for row in rows)]
        if not rows:
            return None
        return Grid(
            tuple(c.header for c in columns),
            tuple(tuple(NONE if row[c.key] is None else c.text(row[c.key]) for c in columns) for row in rows),
            frozenset(i for i, c in enumerate(columns) if c.right),
        )

    def csv_text(self) -> str:
        """The table as CSV: every digit, an empty cell where nothing is known."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([c.key for c in self.columns])
        writer.writerows([["" if row[c.key] is None else row[c.key] for c in self.columns] for row in self.rows])
        return stream.getvalue()


def four(value: float) -> str:
    return f"{value:.4f}"


def signed(value: float) -> str:
    return f"{value:+.4f}"


def seconds3(value: float) -> str:
    return f"{value:.3f} s"


def gib(value: float) -> str:
    return f"{value:.2f} GiB"


def minutes(value: float) -> str:
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.1f} min"


def whole(value: int) -> str:
    return f"{value:,}"


def moment(text: str) -> str:
    """2026-11-30T07:41:05+00:00 without the T; the zone is named in the note."""
    return text.removesuffix("+00:00").replace("T", " ")


def yes(value: bool) -> str:
    return "yes" if value else "no"


_SET = Column("set", "set", right=False)
_N = Column("sessions", "N")
_ARM = Column("arm", "arm", right=False)
_LOW, _HIGH = Column("low", "95 % from", four), Column("high", "to", four)
_OUTSIDE = Column("outside", "outside the measured range", right=False)


def study_tables(view: Overview) -> list[DataTable]:
    """Every table that has rows."""
    sets = view.sets
    made = [
        predictions_table(sets),
        comparisons_table(sets),
        replicates_table(sets),
        findings_table(sets),
        cells_table(sets),
        pairs_table(sets),
        saturation_table(sets),
        costs_table(sets),
        break_even_table(sets),
        runs_table(sets),
        log_table(view),
    ]
    return [table for table in made if table.rows]


def predictions_table(sets: Sequence[SetOverview]) -> DataTable:
    """What was registered."""
    rows = []
    for s in sets:
        for p in s.predicted:
            low, high = (None, None) if p.interval is None else (p.interval.low, p.interval.high)
            kind = EXPLORATORY if p.sessions in s.plans.exploratory else "confirmatory"
            rows.append(
                {"set": s.plans.name, "sessions": p.sessions, "arm": p.arm, "kind": kind, "ratio": p.ratio}
                | {"low": low, "high": high, "outside": "; ".join(p.extrapolated) or None}
            )
    return DataTable(
        "predictions",
        "Registered predictions",
        (
            *(_SET, _N, _ARM, Column("kind", "kind", right=False), Column("ratio", "predicted ratio", four)),
            *(_LOW, _HIGH, _OUTSIDE),
        ),
        tuple(rows),
    )


def _judged(sets: Sequence[SetOverview], key: str) -> list[tuple[SetOverview, dict[str, Any]]]:
    return [(s, row) for s in sets if s.verdict is not None for row in s.verdict.data.get(key, ())]


def _outside(row: Mapping[str, Any]) -> str | None:
    """What was priced outside the measured range; verdicts of earlier versions do not say."""
    return "; ".join(row.get("extrapolated", ())) or None


def comparisons_table(sets: Sequence[SetOverview]) -> DataTable:
    """Decisions on whole runs, with every number that led to them."""
    rows = []
    for s, c in _judged(sets, "comparisons"):
        interval = c["interval"] or {"low": None, "high": None}
        rows.append(
            {
                "set": s.plans.name,
                "source": s.basis,
                **{key: c[key] for key in ("sessions", "arm", "predicted", "ratio_a", "ratio_b", "difference")},
                **{key: c[key] for key in ("tolerance", "error", "decision", "rule", "later_turns")},
                "low": interval["low"],
                "high": interval["high"],
                "inside": None if c["interval"] is None else interval["low"] <= c["ratio_a"] <= interval["high"],
                "decode_ratio": c["observed_parts"][0],
                "decode_predicted": c["predicted_parts"][0],
                "prefill_ratio": c["observed_parts"][1],
                "prefill_predicted": c["predicted_parts"][1],
                "steps": c["decode_steps"][0],
                "steps_base": c["decode_steps"][1],
                "reused": c["reused"][0],
                "reused_predicted": c["reused_predicted"][0],
                "reused_base": c["reused"][1],
                "device_s": c["device_s"][0],
                "device_s_base": c["device_s"][1],
                "outside": _outside(c),
            }
        )
    return DataTable(
        "comparisons",
        "Device time against the baseline, sums over replicates",
        (
            *(_SET, Column("source", "runs", right=False), _N, _ARM, Column("predicted", "predicted", four)),
            *(_LOW, _HIGH, Column("ratio_a", "A", four), Column("inside", "A inside", yes, right=False)),
            *(Column("ratio_b", "B", four), Column("difference", "|A - B|", four)),
            Column("tolerance", "tolerance", four),
            *(Column("error", "e", signed), Column("decision", "decision", right=False)),
            *(Column("rule", "rule and numbers", right=False), Column("decode_ratio", "decode", four)),
            *(Column("decode_predicted", "predicted", four), Column("prefill_ratio", "prefill", four)),
            *(Column("prefill_predicted", "predicted", four), Column("steps", "steps", whole)),
            *(Column("steps_base", "baseline", whole), Column("reused", "reused", whole)),
            *(Column("reused_predicted", "predicted", whole), Column("reused_base", "baseline", whole)),
            *(Column("later_turns", "of", whole), Column("device_s", "device time", seconds3)),
            *(Column("device_s_base", "baseline", seconds3), _OUTSIDE),
        ),
        tuple(rows),
        "e = predicted - A; A: priced steps and prefills; B: time with a request in flight, seen by the clients.",
    )


def replicates_table(sets: Sequence[SetOverview]) -> DataTable:
    """Every replicate of every comparison."""
    rows = [
        {"set": s.plans.name, "sessions": c["sessions"], "arm": c["arm"], **r}
        for s, c in _judged(sets, "comparisons")
        for r in c["replicates"]
    ]
    columns = (_SET, _N, _ARM, Column("replicate", "replicate", right=False), Column("predicted", "predicted", four))
    more = (Column("ratio_a", "A", four), Column("ratio_b", "B", four))
    return DataTable("replicates", "Replicates", (*columns, *more), tuple(rows))


def findings_table(sets: Sequence[SetOverview]) -> DataTable:
    """The criteria of steady load."""
    rows = [
        {"set": s.plans.name, "source": s.basis, **{key: f[key] for key in ("criterion", "verdict", "rule")}}
        for s, f in _judged(sets, "findings")
    ]
    columns = [Column(key, key, right=False) for key in ("criterion", "verdict")]
    rule = Column("rule", "rule and numbers", right=False)
    note = "A criterion that passes without beating its null predictor is not confirmed."
    source = Column("source", "runs", right=False)
    return DataTable("findings", "Criteria of steady load", (_SET, source, *columns, rule), tuple(rows), note)


def cells_table(sets: Sequence[SetOverview]) -> DataTable:
    """Reuse, cost ratio and occupancy of every cell in steady load."""
    rows = []
    for s, c in _judged(sets, "cells"):
        cost = c["cost"] or {"point": None, "low": None, "high": None}
        keys = ("sessions", "arm", "reuse_predicted", "reuse", "cost_predicted", "occupancy_distance", "null_distance")
        row = {"set": s.plans.name, **{key: c[key] for key in keys}, "cost": cost["point"]}
        row |= {"low": cost["low"], "high": cost["high"], "exploratory": c["exploratory"]}
        rows.append({**row, "outside": _outside(c)})
    return DataTable(
        "cells",
        "Steady load, cell by cell",
        (
            *(_SET, _N, _ARM, Column("reuse_predicted", "reuse predicted", four), Column("reuse", "reuse", four)),
            *(Column("cost_predicted", "cost predicted", four), Column("cost", "cost", four), _LOW, _HIGH),
            *(Column("occupancy_distance", "occupancy distance", four), Column("null_distance", "of a guess", four)),
            *(Column("exploratory", "exploratory", yes, right=False), _OUTSIDE),
        ),
        tuple(rows),
        "cost: median over replicates of device time per turn over the baseline's, with its paired bootstrap interval "
        f"(95 % from {LEAST_VALUES} replicates on).",
    )


def pairs_table(sets: Sequence[SetOverview]) -> DataTable:
    """Which of two arms is cheaper, where the data tell."""
    rows = []
    for s, p in _judged(sets, "pairs"):
        ratio = p["ratio"]
        row = {"set": s.plans.name, "sessions": p["sessions"], "pair": f"{p['x']} / {p['y']}"}
        row |= {"ratio": ratio["point"], "low": ratio["low"], "high": ratio["high"], "predicted": p["predicted"]}
        rows.append({**row, "resolved": p["resolved"], "agrees": p["agrees"] if p["resolved"] else None})
    return DataTable(
        "pairs",
        "Ranking",
        (
            *(_SET, _N, Column("pair", "arms", right=False), Column("ratio", "median ratio", four), _LOW, _HIGH),
            *(Column("predicted", "predicted", four), Column("resolved", "resolved", yes, right=False)),
            Column("agrees", "prediction agrees", yes, right=False),
        ),
        tuple(rows),
    )


def saturation_rows(found: Saturation) -> list[dict[str, Any]]:
    """Rows of adjacent pairs."""
    return [step.to_dict() for step in found.steps]


def left_out_text(found: Saturation) -> str:
    """The N that are not among the cells, empty without any."""
    names = ", ".join(map(str, found.left_out))
    return f"Exploratory N decide nothing and are left out: N = {names}." if names else ""


SATURATION_COLUMNS = (
    *(Column("fewer", "from", right=False), Column("more", "to", right=False)),
    *(Column("median_ratio", "median ratio", four), _LOW, _HIGH, Column("width", "width", four)),
    *(Column("cells", "cells", whole), Column("controlled", "slots alone differ", yes, right=False)),
    *(Column("decision", "decision", right=False), Column("rule", "rule and numbers", right=False)),
)


def saturation_table(sets: Sequence[SetOverview]) -> DataTable:
    """Adjacent slot counts."""
    rows = [
        {"set": s.plans.name, "basis": s.basis, **row}
        for s in sets
        if s.saturation is not None
        for row in saturation_rows(s.saturation)
    ]
    basis = Column("basis", "runs", right=False)
    note = "Device time with more slots over that with fewer: median over cells (N and replicate)."
    return DataTable("saturation", "More slots", (_SET, basis, *SATURATION_COLUMNS), tuple(rows), note)


def costs_table(sets: Sequence[SetOverview]) -> DataTable:
    """What each arm costs to have."""
    rows = [{"set": s.plans.name, **cost.to_dict()} for s in sets for cost in s.costs]
    return DataTable(
        "costs",
        "What a configuration costs to have",
        (
            *(_SET, _ARM, Column("slots", "KV slots", whole), Column("compile_s", "compile", minutes)),
            *(Column("compile_from", "known from", right=False), Column("artifact_gib", "artifact", gib)),
            Column("memory_gib_per_device", "fullest device", gib),
        ),
        tuple(rows),
    )


def break_even_table(sets: Sequence[SetOverview]) -> DataTable:
    """Compile cost against saving."""
    rows = [{"set": s.plans.name, **b.to_dict()} for s in sets for b in s.break_even]
    steady = any(s.plans.load == STEADY for s in sets)
    return DataTable(
        "break_even",
        "Compile cost against saving",
        (
            *(_SET, _N, _ARM, Column("basis", "saving is", right=False), Column("saved_s", "saved each", seconds3)),
            *(Column("compile_s", "compile", minutes), Column("runs", "break-even after", whole)),
            *(Column("unit", "", right=False), Column("decision", "decision", right=False)),
        ),
        tuple(rows),
        "Break-even: a second of compiling counts as much as a second of device time; a run is one plan of the set"
        + (", in steady load one turn." if steady else ".")
        + " decision: on the comparison the saving is from; only a saving that passed is established.",
    )


def runs_table(sets: Sequence[SetOverview]) -> DataTable:
    """Where every run came from."""
    rows = [
        {
            "set": s.plans.name,
            "sessions": r.cell.sessions,
            "replicate": r.cell.replicate,
            "arm": r.arm,
            **{key: r.data.get(key) for key in ("source", "how", "started_at", "added_at", "order", "origin")},
            "started_stated": started_by_hand(r),
            "attempts": s.attempts[r.sha256],
            "record_sha256": r.sha256,
        }
        for s in sets
        for r in s.records
    ]
    columns = [Column(key, key.replace("_at", ""), moment, right=False) for key in ("started_at", "added_at")]
    columns.insert(1, Column("started_stated", "start only stated", yes, right=False))
    columns = [Column(key, key, right=False) for key in ("source", "how")] + columns
    return DataTable(
        "runs",
        "Runs (UTC)",
        (
            *(_SET, _N, Column("replicate", "replicate", right=False), _ARM, *columns),
            *(Column("attempts", "attempts", whole), Column("order", "order", whole)),
            Column("origin", "from", right=False),
            Column("record_sha256", "record", lambda sha: sha[:12], right=False),
        ),
        tuple(rows),
    )


def started_by_hand(record: Record) -> bool | None:
    """Whether the start of a run is only what --started said; None for a simulated run, which has none."""
    return None if record.source == SIMULATED else record.data.get("started_stated") is not None


def other_code(s: SetOverview) -> list[tuple[str, int, int]]:
    """Reason, files that differ and number of runs, for runs that were added with other code than registered."""
    found: dict[tuple[str, int], int] = {}
    for r in s.records:
        code = r.data.get("code")
        if code:
            key = (str(code["reason"]), len(code["changed"]))
            found[key] = found.get(key, 0) + 1
    return [(reason, changed, count) for (reason, changed), count in found.items()]


def other_arms(s: SetOverview) -> list[tuple[str, str, int]]:
    """Reason, hash of the arms file and number of runs, for runs that were measured with another than registered."""
    used = [
        (str(r.data["arms_file"]["reason"]), str(r.data["arms_file"]["file_sha256"]))
        for r in s.records
        if r.data.get("arms_file")
    ]
    return [(reason, sha256, count) for (reason, sha256), count in Counter(used).items()]


def log_table(view: Overview) -> DataTable:
    """What happened when: registrations, runs, decisions with their rules."""
    rows: list[dict[str, Any]] = []

    def add(when: str, what: str, text: str) -> None:
        rows.append({"when": when, "what": what, "text": text})

    for entry in view.study.entries:
        git = entry.data.get("git")
        text = f"sets {', '.join(entry.data['sets'])}; manifest {entry.sha256[:12]}; slotgrid {entry.data['slotgrid']}"
        if git:
            state = {True: "", False: " with uncommitted changes", None: " (state not known)"}[git["clean"]]
            text += f"; git {git['commit'][:12]}{state}"
        if entry.data.get("reason"):
            text += f"; reason: {entry.data['reason']}"
        add(entry.registered_at, str(entry.data["kind"]), text)
    for s in view.sets:
        name = s.plans.name
        if s.records:
            times = sorted(str(r.data["added_at"]) for r in s.records)
            kinds = ", ".join(sorted({r.source for r in s.records}))
            add(times[-1], "runs", f"set {name}: {len(s.records)} of {s.runs_wanted} runs ({kinds}), first {times[0]}")
            for reason, changed, count in other_code(s):
                text = f"set {name}: {count} runs added while {changed} files differed; reason: {reason}"
                add(times[-1], "other code", text)
        for lost in s.lost:
            text = f"set {name}, {lost.name}: neither a run nor a refusal came of it (stopped, removed or still going)"
            add(lost.began_at, "attempt", text)
        if s.verdict is None:
            continue
        data = s.verdict.data
        when = data["decided_at"]
        add(when, "verdict", f"set {name}: data {data['data_sha256'][:12]}, manifest {data['manifest_sha256'][:12]}")
        if data.get("code"):
            changed = len(data["code"]["changed"])
            add(when, "other code", f"set {name}: {changed} files differ; reason: {data['code']['reason']}")
        for c in data.get("comparisons", ()):
            add(when, "decision", f"set {name}, N = {c['sessions']}, {c['arm']}: {c['decision']}: {c['rule']}")
        for f in data.get("findings", ()):
            add(when, "decision", f"set {name}, {f['criterion']}: {f['verdict']}: {f['rule']}")
    for line in view.study.log.lines:
        if line.what == REFUSED:
            attempt = f" (attempt {line.data['attempts']})" if line.data.get("attempts") else ""
            add(line.time, "refused", f"{line.data['reason']}{attempt}")
        if line.what == OTHER_ARMS:
            now, then = (str(line.data[key])[:12] for key in ("file_sha256", "registered_sha256"))
            text = f"set {line.data['set']}: {now} in place of {then}; reason: {line.data['reason']}"
            add(line.time, "other arms file", text)
        if line.what == CONTINUED:
            add(line.time, "continued", str(line.data["text"]))
    order_of = (
        "registration",
        "amendment",
        CONTINUED,
        "other arms file",
        "attempt",
        REFUSED,
        "runs",
        "verdict",
        "other code",
        "decision",
    )
    order = {kind: i for i, kind in enumerate(order_of)}
    rows.sort(key=lambda row: (row["when"], order[row["what"]]))
    columns = (Column("when", "when", moment, right=False), Column("what", "what", right=False))
    return DataTable("log", "Decision log (UTC)", (*columns, Column("text", "", right=False)), tuple(rows))
