"""A plugin with which Axolotl trains in several processes without a GPU, and in float64.

It stands in for the two places that ask for a GPU, and makes weights and norms float64 after the model is loaded, which
Axolotl has no setting for. Transformers computes the loss of float64 logits in float32.
"""

import torch
from axolotl.integrations.base import BasePlugin
from transformers_model import keep_fp64


def _no_peers(*_):
    return False


class Plugin(BasePlugin):
    def register(self, cfg):
        torch.cuda.can_device_access_peer = _no_peers  # Axolotl asks it of any PyTorch

    def load_datasets(self, cfg, preprocess=False):
        cfg.device_map = {"": "cpu"}  # Axolotl has set it to the number of a GPU, whatever the file says

    def post_model_load(self, cfg, model):
        keep_fp64(model.double())
