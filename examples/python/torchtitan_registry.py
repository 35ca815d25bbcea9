"""TorchTitan's small Llama 3 with DistCA. TorchTitan itself, its tokenizer and its test data stay as they are.

    torchrun --nproc-per-node 2 -m torchtitan.train --module torchtitan_registry --config balanced

Run it in a checkout of TorchTitan, with this folder on PYTHONPATH. It needs a GPU for each process and was not run.
"""

import distca.torchtitan
from torchtitan.models.llama3.config_registry import llama3_debugmodel


def balanced():
    return distca.torchtitan.use(llama3_debugmodel())
