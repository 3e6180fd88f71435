"""Rebellions: vllm-rbln and optimum-rbln 0.11.1 to 0.12.0.

``artifact`` reads a compiled folder, ``commands`` writes the command lines, ``releases`` knows the files of each
release by hash, ``observe`` runs inside the server as a plugin, ``patch`` writes the one log line for those who
prefer a patched file. Nothing is imported here: the observer passes through this module.
"""
