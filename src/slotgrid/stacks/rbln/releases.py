"""What is known of each release: the files that are wrapped or patched, by SHA-256 (hex), read from the wheels.

Kept free of imports so that an observer can use it inside a server.
"""

from __future__ import annotations

MODEL_BASE = "vllm_rbln/model_executor/models/optimum/model_base.py"
MODEL_RUNNER = "vllm_rbln/v1/worker/optimum_model_runner.py"
MANAGER = "vllm_rbln/v1/core/prefix_cache_manager/optimum_prefix_cache_manager.py"
SCHEDULER = "vllm_rbln/v1/core/optimum_scheduler.py"
MAPPING = "vllm_rbln/v1/core/prefix_cache_manager/optimum_block_mapping_manager.py"
EVICTION = "vllm_rbln/v1/core/prefix_cache_manager/optimum_eviction_policy.py"

# the same bytes in 0.11.1, 0.11.1.post1 and 0.11.2
_MODEL_BASE_011 = "46ce1675a2b55e36d4d6dd0154edae793cd3874ed1fbe16e74a40ed7c809298e"
# the same bytes in all four releases
_MANAGER = "81850a8be0ef16362db015dcc98dde71e3c902fbd48174a7e4c2a389505d296b"
_EVICTION = "309a0ba3922affd7464cd2b91998ff30af8ac3389e114a5f7b58b6069a10f287"
_MAPPING_0111 = "e4b218cd4c491a3277102815ff94fe921a42354810355f104018a7a30639b72e"
_MAPPING_0112 = "f2ec1c16f6e31cfa0a8a49696cbf615294a3fb37d0fe1e8756b0a7044f97d857"

_0111 = {
    MODEL_BASE: _MODEL_BASE_011,
    MODEL_RUNNER: "365ba136eb79d0ffb226e65670118ed825156b39ebcff96d6bada4989f3e0dc6",
    MANAGER: _MANAGER,
    SCHEDULER: "26d21ea15fafaa965e58c75518a375975cb3842fb2e2783c78e9e516b89561ae",
    MAPPING: _MAPPING_0111,
    EVICTION: _EVICTION,
}

# vllm-rbln release -> file inside site-packages -> SHA-256
FILES: dict[str, dict[str, str]] = {
    "0.11.1": _0111,
    "0.11.1.post1": _0111,
    "0.11.2": {
        MODEL_BASE: _MODEL_BASE_011,
        MODEL_RUNNER: "eb5c3511e886fe72f1bb82cbbba359c244b367a398d69095ee3dd48d5fc21a96",
        MANAGER: _MANAGER,
        SCHEDULER: "787b398046c4b024a0d84e8c9cca8bf8ce9b9693d0518c697b789d1f3121b144",
        MAPPING: _MAPPING_0112,
        EVICTION: _EVICTION,
    },
    "0.12.0": {
        MODEL_BASE: "f6a55cc812d9d00e4e856f1f800073c12d8eeec3c34441e4ba1371489326d88a",
        MODEL_RUNNER: "a252054b359321eee6f3e28a20566b42a6328aeac418785071e7b0e42fcf33c7",
        MANAGER: _MANAGER,
        SCHEDULER: "511ab1573333db48cad079f7744b0c0c548b2b1aa07746b0621180c83b5ee4d6",
        MAPPING: _MAPPING_0112,
        EVICTION: _EVICTION,
    },
}

# optimum-rbln releases whose rbln_config.json is understood
ARTIFACT_VERSIONS = ("0.11.1", "0.11.2", "0.12.0")
# optimum-rbln release whose command line can change the number of blocks of a compiled artifact
RESIZE_SINCE = "0.12.0"


def releases_of(path: str, sha256: str) -> tuple[str, ...]:
    """Releases that ship ``path`` with this hash; empty when none does."""
    return tuple(release for release, files in FILES.items() if files.get(path) == sha256)
