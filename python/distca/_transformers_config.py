"""The attention that a model's configuration names. Models that are made of one configuration share the object."""

import weakref

from distca._transformers_attention import NAME

_attached = weakref.WeakKeyDictionary()  # model -> what `attention_before` returned


def attention_before(model) -> dict:
    """The attention that the configuration, and those in it, named before any model of it was attached."""
    sharing = (before for one, before in _attached.items() if one.config is model.config)
    return next(sharing, None) or _kinds(model.config)


def take_attention(model, before):
    model.set_attn_implementation(NAME)
    _attached[model] = before


def give_attention_back(model, before):
    """The configuration stays as it is while another attached model has it, too."""
    _attached.pop(model, None)
    if all(one.config is not model.config for one in _attached):
        _set_kinds(model.config, before)


def _kinds(config) -> dict:
    return {"": config._attn_implementation,
            **{name: _kinds(of) for name in config.sub_configs if (of := getattr(config, name)) is not None}}


def _set_kinds(config, kinds):
    config._attn_implementation = kinds[""]
    for name in kinds.keys() - {""}:
        _set_kinds(getattr(config, name), kinds[name])
