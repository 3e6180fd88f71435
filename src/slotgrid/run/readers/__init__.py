"""Reading what a run left behind, one module per kind of file.

``stream`` (blocks, gzip, progress), ``vllm_rbln_log`` (one pass over a server log) and ``log_tables`` (its events as
tables), ``rows`` with ``aiperf``, ``vllm_bench``, ``guidellm`` (request rows), ``metrics``, then ``directory`` (which
file is what), ``sessions`` and ``join`` (what belongs together) and ``assemble`` (the Run).
"""

from slotgrid.run.readers.assemble import read_run

__all__ = ["read_run"]
