"""Rebellions: optimum-rbln commands. Source: the command line of optimum-rbln 0.11.1."""

from __future__ import annotations

from slotgrid.config import ServingConfig


def compile_command(
    config: ServingConfig,
    *,
    model_id: str,
    max_seq_len: int,
    devices: int | None,
    output_dir: str | None = None,
) -> list[str]:
    """Words of the ``optimum-rbln-cli`` call that compiles ``config``.

    KV slots equal the batch size unless ``kvcache_num_blocks`` says otherwise, so it is named only then.
    """
    folder = output_dir or f"{model_id.rsplit('/', 1)[-1].lower()}-b{config.max_running}-s{config.slots}"
    # a single size without brackets would be read as a number, not as a list
    sizes = ",".join(map(str, config.buckets)) if len(config.buckets) > 1 else f"[{config.buckets[0]}]"
    words = ["optimum-rbln-cli", "--output-dir", folder, "--model-id", model_id]
    words += ["--batch_size", str(config.max_running), "--decoder_batch_sizes", sizes]
    words += ["--max_seq_len", str(max_seq_len)]
    if devices is not None:
        words += ["--num_devices", str(devices)]
    if config.slots != config.max_running:
        words += ["--kvcache_num_blocks", str(config.slots)]
    return words
