"""Tiny random models of every entry of Transformers' table of causal language models, attached, against sdpa.

    python causal_models.py             the table of bench/results/causal_models_*.md, in some minutes
    python causal_models.py NAME...     what becomes of these entries
"""

import dataclasses
import re
import sys
import traceback
import warnings

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers_model import documents_of, packed, worst_gradient

import distca.transformers

NAMES = list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
BOUND = 2e-4  # of logits, loss and gradients in fp32, relative
LENGTHS = [13, 1, 21, 6]
_MOST = 9_000_000  # parameters of a model, so that a size that is not made small below takes no memory

# What fields of configurations are called, and how small each is made.
_SIZES = {
    64: "vocab_size embedding_vocab_size",
    32: "hidden_size d_model n_embd dim embedding_size decoder_hidden_size",
    48: "intermediate_size n_inner ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size d_ff dff d_inner",
    16: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank expert_ffn_hidden_size",
    2: """num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_key_value_heads
          num_experts_per_tok moe_topk num_experts_per_token top_k moe_top_k""",
    4: """num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads num_experts
          num_local_experts n_routed_experts""",
    8: "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim d_kv attention_head_dim",
    1: "n_group topk_group n_shared_experts num_shared_experts bos_token_id",
    0: "pad_token_id",
    3: "eos_token_id",
    512: "max_position_embeddings n_positions n_ctx max_sequence_length max_seq_len",
    6: "sliding_window",
}
_FIELDS = {name: size for size, names in _SIZES.items() for name in names.split()}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2}
_SHARED = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2}
_PER_LAYER = {"vocab_size_per_layer_input": 64, "global_head_dim": 8, **_SHARED}
_ALONE = {"num_kv_shared_layers": 0, "global_head_dim": 8}
_OWN = {  # what these entries need besides
    "bamba": _MAMBA,
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"layer_types": ["full_attention", "sliding_attention"], "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
        for kind in ("full_attention", "sliding_attention")}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8}},
    "dots3_note": {"text_config": {"head_dim": 16, "per_layer_config": None}},
    "dots3_note_text": {"head_dim": 16},
    "gemma3n_text": {"vocab_size_per_layer_input": 64, "intermediate_size": 48, **_SHARED},
    "gemma4": {"text_config": _PER_LAYER, "vision_config": {"position_embedding_size": 16}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, **_ALONE}},
    "gemma4_text": _PER_LAYER,
    "gemma4_unified_assistant": {"text_config": _ALONE},
    "gemma4_unified": {"vision_config": {"mm_embed_dim": 32, "output_proj_dims": 32, "mm_posemb_size": 16}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 6},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": _MAMBA,
    "lfm2_moe": {"layer_types": ["full_attention", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16, "expand": 2},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"]},
    "roc_bert": {"pronunciation_vocab_size": 64, "shape_vocab_size": 64},
    "xlm": {"emb_dim": 32, "n_words": 64, "pad_index": 0, "mask_index": 4, "unk_index": 3},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 2},
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], **_MAMBA},
}


def _small(config_class, own):
    """The arguments of a small configuration: those that it has of the fields above, no dropout, and its own."""
    fields = {field.name: field.default for field in dataclasses.fields(config_class)}
    found = {name: size for name, size in _FIELDS.items() if name in fields}
    found.update({name: type(default)(0) for name, default in fields.items()
                  if ("drop" in name or "jitter" in name) and isinstance(default, (int, float))})
    if "kv_lora_rank" in fields:
        found["num_key_value_heads"] = found["num_attention_heads"]
    found.update({name: True for name in ("is_decoder", "use_sliding_window") if name in fields})
    for name, of in config_class.sub_configs.items():
        kind = getattr(getattr(config_class, "sub_configs_defaults", {}).get(name), "model_type", None)
        of = CONFIG_MAPPING[kind] if kind else of
        if name in fields and of is not transformers.AutoConfig:
            found[name] = {**_small(of, own.get(name, {})), **({"model_type": kind} if kind else {})}
    return {**found, **{name: value for name, value in own.items() if name not in config_class.sub_configs}}


def make(name):
    """A model of that entry in fp32, of weights that are the same in each process."""
    config = CONFIG_MAPPING[name](**_small(CONFIG_MAPPING[name], _OWN.get(name, {})))
    with torch.device("meta"):
        size = sum(one.numel() for one in transformers.AutoModelForCausalLM.from_config(config).parameters())
    if size > _MOST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
    return model.train()


def batches():
    """[(what it is, batch, its documents)]"""
    documents, rows = documents_of(LENGTHS), documents_of([9, 9, 9], 2)
    together = torch.stack(rows)
    return [("packed", packed(documents), documents),
            ("rows", {"input_ids": together, "labels": together}, rows)]


def step(model, batch):
    """The logits of each token and all gradients of the sum of all targets' losses."""
    model.zero_grad()
    out = model(**{name: value for name, value in batch.items() if name != "labels"}, use_cache=False)
    loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten(),
                                             reduction="sum")
    loss.backward()
    gradients = {name: one.grad.double() for name, one in model.named_parameters() if one.grad is not None}
    return out.logits.detach().flatten(0, 1), loss.item(), gradients


def alone(model, documents):
    """The same of a document at a time."""
    logits, losses, gradients = [], 0.0, {}
    for document in documents:
        of, loss, found = step(model, {"input_ids": document[None], "labels": document[None]})
        logits.append(of)
        losses += loss
        for name, gradient in found.items():
            gradients[name] = gradients.get(name, 0) + gradient
    return torch.cat(logits), losses, gradients


def difference(got, want):
    (logits, loss, gradients), (of_logits, of_loss, of_gradients) = got, want
    if gradients.keys() != of_gradients.keys():
        return float("inf")
    return max(((logits - of_logits).norm() / of_logits.norm()).item(), abs(loss - of_loss) / of_loss,
               worst_gradient(gradients, of_gradients))


def _where(error):
    return traceback.extract_tb(error.__traceback__)[-1]


def _reason(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__} in {_where(error).filename.rsplit('/', 1)[-1]}: {lines[-1][:120]}"


def _is_refusal(error):
    return isinstance(error, ValueError) and "\n" not in str(error) and "/distca/" in _where(error).filename


def _of_step(model, one, nano_batches):
    """What the kinds of batches say: "" where one equals those of `one`, a document at a time, else the refusal."""
    said = []
    for kind, batch, documents in batches():
        try:
            want = alone(one, documents)
        except Exception as error:
            raise LookupError(_reason(error)) from None
        try:
            distance = difference(step(model, batch), want)
        except Exception as error:
            if not _is_refusal(error):
                raise
            said.append(str(error))
            continue
        assert distance < BOUND, f"nano_batches={nano_batches}, {kind}: off by {distance:.1e}"
        said.append("")
    return said


def outcome(name):
    """(what becomes of the entry: equal, refused, not built or wrong; why, one line)."""
    try:
        one = make(name)
    except Exception as error:
        return "not built", _reason(error)
    said = []
    for nano_batches in (1, 2):
        model = make(name)
        try:
            distca.transformers.attach(model, nano_batches=nano_batches)
            said += _of_step(model, one, nano_batches)
        except LookupError as error:
            return "not built", str(error)
        except Exception as error:
            if not _is_refusal(error):
                return "wrong", _reason(error)
            said.append(str(error))
    lines = [line for line in said if line]
    return "refused" if len(lines) == len(said) else "equal", lines[0] if lines else ""


def table(outcomes) -> str:
    """Markdown: the entries by what becomes of them. outcomes: {name: outcome}"""
    entries = {}
    for name, (what, why) in outcomes.items():
        why = re.sub(r"^[\w]*(ForCausalLM|LMHeadModel|ForConditionalGeneration|ModelWithLMHead)\b", "the model", why)
        entries.setdefault((what, why), []).append(name)
    lines = ["| what becomes of it | entries |", "|---|---|"]
    for (what, why), names in sorted(entries.items(), key=lambda entry: (entry[0][0], -len(entry[1]))):
        lines.append(f"| {len(names)} {what}{': ' * bool(why)}{why} | {', '.join(names)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found = {}
    for name in sys.argv[1:] or NAMES:
        found[name] = outcome(name)
        print(name, *found[name], sep=" | ", file=sys.stderr, flush=True)
    print(table(found))
