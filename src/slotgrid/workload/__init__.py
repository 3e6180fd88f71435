"""Workloads: distributions, tool waits, and the plans drawn from them."""

from slotgrid.workload.tool_mix import Tool, ToolMix, load_tools, tracelab_tools
from slotgrid.workload.workload import Workload, built_in_workloads, load_workload, workload_from_toml

__all__ = [
    "Tool",
    "ToolMix",
    "Workload",
    "built_in_workloads",
    "load_tools",
    "load_workload",
    "tracelab_tools",
    "workload_from_toml",
]
