"""Transformers' Trainer on documents of very different lengths. Two lines of it are DistCA's.

    torchrun --nproc-per-node 2 finetune_trainer.py

It needs no download and no GPU: the model is a tiny Llama with random weights, and the documents are made up. For your
own, take AutoModelForCausalLM.from_pretrained and a dataset with input_ids.
"""

import random
import tempfile

import torch
import transformers

import distca.transformers


def documents(number, seed):
    """Tokens that count up from a random one. A few documents are long, most are short."""
    draw = random.Random(seed)
    for _ in range(number):
        length = min(int(20 * draw.paretovariate(0.9)), 1000)
        first = draw.randrange(64)
        yield {"input_ids": [(first + i) % 64 for i in range(length)]}


def main():
    transformers.set_seed(1)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16)
    model = transformers.AutoModelForCausalLM.from_config(config)
    distca.transformers.attach(model, nano_batches=2)

    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=folder, use_cpu=True, per_device_train_batch_size=4, max_steps=8, learning_rate=1e-2,
                logging_steps=1, eval_strategy="steps", eval_steps=4, save_strategy="no", report_to="none",
                ddp_broadcast_buffers=False,  # so that a rank that is missing is named by DistCA
                disable_tqdm=True),
            train_dataset=list(documents(64, seed=1)),
            eval_dataset=list(documents(8, seed=2)),
            data_collator=transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True),
        )
        trainer.train()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            for name in ("loss", "eval_loss"):
                if name in entry:
                    print(f"step {entry['step']} {name} {entry[name]:.6f}")


if __name__ == "__main__":
    main()
