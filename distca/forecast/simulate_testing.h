#pragma once
// The run whose steps tests of this room predict. For tests only.

#include <string>
#include <vector>

namespace distca {

/// Words of a small model in bf16 and of its batches; how many nano-batches is left open.
inline const std::vector<std::string> kModel = {"model.hidden_size=1024",
                                                "model.intermediate_size=2048",
                                                "model.num_attention_heads=8",
                                                "model.num_key_value_heads=2",
                                                "model.head_dim=128",
                                                "model.num_hidden_layers=4",
                                                "model.vocab_size=512",
                                                "model.dtype=bfloat16",
                                                "batch.nano_batch_tokens=16384",
                                                "batch.max_document_tokens=16384"};

}  // namespace distca
