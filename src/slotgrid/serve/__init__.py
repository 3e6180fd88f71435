"""A real static engine: decode graphs compiled ahead of time, fixed KV slots, an OpenAI-compatible server.

Read in this order: ``shapes`` and ``model`` (what is computed), ``compile`` and ``artifact`` (made before serving),
``scheduler`` (who runs next and in which slot, without I/O), ``executor`` (runs what was compiled and nothing else),
``engine`` (one decision, one step, its events), then ``worker``, ``app`` and ``server`` (the engine behind HTTP).

This room needs the extra ``slotgrid[serve]``; nothing in it is imported until a command asks for it.
"""
