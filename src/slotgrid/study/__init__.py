"""Studies: a registered comparison from prediction to verdict, in one directory.

Read in this order: ``settings`` (study.toml), ``register`` and ``manifest`` (what is fixed, and how a change is
noticed), ``predict``, ``collect`` and ``records`` (runs come in), ``decide`` and ``steady`` (the criteria, pure
functions on numbers), ``verdict`` (once per data set); beside them ``saturation`` and ``null``.
"""
