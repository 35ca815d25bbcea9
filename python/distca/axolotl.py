"""DistCA in Axolotl: a plugin, which attaches the model and deals the steps of its trainer.

    plugins:
      - distca.axolotl.Plugin
    distca:
      shard: true

Settings of the block `distca`, all of which may be left out:

nano_batches: as in `distca.transformers.attach`; 1 or 2.
shard: whether the tokens of each step are dealt over all ranks, so that documents may be longer than a rank can hold.
at_once: as in `distca.transformers.shard`; it needs `shard: true`.

The plugin sets what Axolotl would else decide against it: rows of packed documents are not padded to sequence_len unless
`pad_to_sequence_len: true` says so, and they have no attention mask. With `shard`, losses are divided by the targets of all
ranks, and the steps that Axolotl counts for `num_epochs` are those that are dealt. One line of the log says what was done.

Errors. ValueError, in one line before the model is loaded, names a setting of Axolotl that is not served. What `attach` and
`shard` refuse, they refuse here, too. ValidationError of pydantic names an unknown or wrong setting of the block.
"""

from typing import Literal

from axolotl.integrations.base import BasePlugin
from axolotl.utils.logging import get_logger
from pydantic import BaseModel, ConfigDict, model_validator

import distca.transformers
from distca._served import refuse

__all__ = ["Arguments", "Plugin", "Settings"]

LOG = get_logger("axolotl.distca")  # Axolotl prints what is less than a warning only of names that begin with its own


class Settings(BaseModel):
    """The block `distca`."""

    model_config = ConfigDict(extra="forbid")

    nano_batches: Literal[1, 2] = 1
    shard: bool = False
    at_once: int | None = None

    @model_validator(mode="after")
    def _deals(self):
        if self.at_once is not None and not self.shard:
            raise ValueError("distca.at_once says how many batches are dealt at once: it needs distca.shard: true")
        return self


class Arguments(BaseModel):
    """The settings that the plugin adds to those of Axolotl."""

    distca: Settings | None = None


class Plugin(BasePlugin):
    """The plugin; Axolotl calls its methods."""

    def get_input_args(self):
        return "distca.axolotl.Arguments"

    def register(self, cfg):
        if cfg.get("pad_to_sequence_len") is None:  # Axolotl's own choice is to pad, and a rank would compute with it
            cfg["pad_to_sequence_len"] = False
        if cfg.get("fa_varlen_kwargs_in_collator") is None:  # they serve flash-attention alone; position_ids say the documents
            cfg["fa_varlen_kwargs_in_collator"] = False

    def get_training_args(self, cfg):
        of_all = {"average_tokens_across_devices": True} if _settings(cfg).shard else {}
        return {"sample_packing_drop_attention_mask": True, **of_all}

    def load_datasets(self, cfg, preprocess=False):
        """Loads none: Axolotl does after it, and counts the steps of training by batch_size, which becomes that of a step."""
        settings = _settings(cfg)
        if settings.at_once is not None and not preprocess:
            refuse((settings.at_once < 1 or cfg.world_size % settings.at_once > 0,
                    f"distca.at_once = {settings.at_once}: how many of {cfg.world_size} ranks' batches make a step, a divisor of it"))
            cfg.batch_size = cfg.batch_size * settings.at_once // cfg.world_size

    def pre_model_load(self, cfg):
        shards = _settings(cfg).shard
        refuse(
            (not cfg.sample_packing, "sample_packing is not true: padded batches are not served"),
            ((cfg.context_parallel_size or 1) > 1, f"context_parallel_size = {cfg.context_parallel_size}: attention is shared out "
                                                   "already; distca.shard: true spreads documents over all ranks instead"),
            ((cfg.tensor_parallel_size or 1) > 1, f"tensor_parallel_size = {cfg.tensor_parallel_size}: ranks have unequal heads, "
                                                  "which is not served"),
            (shards and cfg.eval_sample_packing is False, "eval_sample_packing = False: batches that are dealt are packed"),
            (shards and bool(cfg.cut_cross_entropy), "cut_cross_entropy shifts labels, and those of steps that are dealt are "
                                                     "shifted already: set it to false"),
        )

    def post_model_load(self, cfg, model):
        distca.transformers.attach(model, nano_batches=_settings(cfg).nano_batches)

    def post_trainer_create(self, cfg, trainer):
        settings = _settings(cfg)
        if settings.shard:
            distca.transformers.shard(trainer, at_once=settings.at_once)
        ranks = cfg.world_size
        of_ranks = f"{ranks} rank{'s' if ranks > 1 else ''}"
        dealt = f"a step deals the tokens of {settings.at_once or ranks} of the ranks' batches over all of them"
        LOG.info(f"distca: attention is balanced over {of_ranks}, nano_batches = {settings.nano_batches}; "
                 f"{dealt if settings.shard else 'each rank keeps its documents'}")


def _settings(cfg) -> Settings:
    return Settings(**(cfg.distca or {}))
