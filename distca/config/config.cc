#include "distca/config/config.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <regex>
#include <type_traits>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/scalar_type.h"
#include "distca/base/text.h"
#include "distca/config/bad_tokens.h"
#include "distca/config/model_from.h"
#include "distca/config/run_grid.h"
#include "distca/config/unknown_key.h"
#include "distca/plan/scheduler.h"

namespace distca {

namespace {

std::string listed(const ConfigKey& key) {
  std::vector<std::string> words;
  for (const std::string& choice : key.choices) words.push_back(choice.empty() ? "\"\"" : choice);
  return fmt::format("{}", fmt::join(words, ", "));
}

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;  // clang 14 does not deduce it by itself

[[noreturn]] void unknown_key(const std::string& origin, const std::string& name,
                              const std::vector<ConfigKey>& keys) {
  throw Error(ErrorKind::kConfig, "{}: unknown key {}{}", origin, name,
              unknown_key_hint(name, keys));
}

/// " (tokens)", or nothing for a key without a unit.
std::string in_units(const ConfigKey& key) {
  return key.unit.empty() ? "" : fmt::format(" ({})", key.unit);
}

void set_text(const ConfigKey& key, std::string text, const std::string& origin) {
  // A number type has several spellings.
  if (const std::string type(type_name(text)); std::ranges::count(key.choices, type) > 0)
    text = type;
  if (!key.choices.empty() && !std::ranges::count(key.choices, text)) {
    const auto nearest = nearest_word(text, key.choices);
    throw Error(ErrorKind::kConfig, "{}: {} = \"{}\": must be one of {}{}", origin, key.name, text,
                listed(key),
                nearest && !nearest->empty() ? fmt::format("; did you mean {}?", *nearest) : "");
  }
  if (const auto* word = std::get_if<WordValue>(&key.value)) return word->choose(text);
  *std::get<std::string*>(key.value) = text;
  // The run's config.toml must say the same. TOML itself is checked; the command line has any
  // bytes.
  const toml::table recorded = toml::parse("value = " + shown_value(key));
  DISTCA_THROW_IF(recorded["value"].value<std::string>() != text, ErrorKind::kConfig,
                  "{}: {} = \"{}\": not UTF-8, as a configuration is", origin, key.name, text);
}

bool is_list(const ConfigKey& key) {
  return std::holds_alternative<std::vector<int64_t>*>(key.value) ||
         std::holds_alternative<std::vector<std::string>*>(key.value);
}

bool is_text(const ConfigKey& key) {
  return std::holds_alternative<std::string*>(key.value) ||
         std::holds_alternative<WordValue>(key.value);
}

std::string describe_number(const ConfigKey& key) {
  return std::holds_alternative<Tolerance*>(key.value) ? "a number or auto" : "a number";
}

/// Describes the text that a key of a number or a bool takes.
std::string wanted(const ConfigKey& key) {
  if (std::holds_alternative<bool*>(key.value)) return "true or false";
  if (std::holds_alternative<std::vector<std::string>*>(key.value)) return "words, as a,b";
  if (is_list(key)) return "whole numbers, as 60,40,100";
  if (std::holds_alternative<int64_t*>(key.value)) {
    return "a whole number as TOML writes it, such as 1000" + in_units(key);
  }
  return describe_number(key) + " as TOML writes it, such as 0.001 or 1e30" + in_units(key);
}

/// The elements of a TOML array.
template <typename T>
std::vector<T> list_of(const ConfigKey& key, const toml::node& node, const std::string& origin) {
  std::vector<T> list;
  const bool right = node.is_array() && node.as_array()->is_homogeneous<T>();
  DISTCA_THROW_IF(!right && !(node.is_array() && node.as_array()->empty()), ErrorKind::kConfig,
                  "{}: {} expects an array of {}", origin, key.name,
                  std::is_same_v<T, int64_t> ? "whole numbers, such as [60, 40, 100]"
                                             : "texts, such as [\"a\", \"b\"]");
  for (const toml::node& element : *node.as_array()) list.push_back(*element.value<T>());
  return list;
}

void set_value(const ConfigKey& key, const toml::node& node, const std::string& origin) {
  const auto expect = [&](bool right, std::string_view what) {
    DISTCA_THROW_IF(!right, ErrorKind::kConfig, "{}: {} expects {}{}, not a TOML {}", origin,
                    key.name, what, in_units(key), (std::ostringstream() << node.type()).str());
  };
  const auto check = [&](double value) {
    const bool low = !(value >= key.minimum);
    DISTCA_THROW_IF(low || value > key.maximum, ErrorKind::kConfig,
                    "{}: {} = {}: must be at {} {}{}", origin, key.name, value,
                    low ? "least" : "most", low ? key.minimum : key.maximum, in_units(key));
  };
  if (is_text(key)) {
    expect(node.is_string(), "text");
    return set_text(key, *node.value<std::string>(), origin);
  }
  std::visit(
      Overloaded{[&](int64_t* v) {
                   expect(node.is_integer(), "an integer");
                   *v = *node.value<int64_t>();
                   check(static_cast<double>(*v));
                 },
                 [&](double* v) {
                   expect(node.is_number(), describe_number(key));
                   *v = *node.value<double>();
                   check(*v);
                 },
                 [&](bool* v) {
                   expect(node.is_boolean(), "true or false");
                   *v = *node.value<bool>();
                 },
                 [&](std::vector<int64_t>* v) {
                   *v = list_of<int64_t>(key, node, origin);
                   for (const int64_t number : *v) check(static_cast<double>(number));
                 },
                 [&](std::vector<std::string>* v) { *v = list_of<std::string>(key, node, origin); },
                 [&](Tolerance* v) {
                   *v = {.is_auto = node.value<std::string>() == "auto",
                         .share = node.value<double>()};
                   expect(v->is_auto || v->share, describe_number(key));
                   if (v->share == -1) v->share.reset();  // the scheduler's own
                   check(v->share.value_or(0));
                 },
                 [](const auto&) {}},
      key.value);
}

void apply_table(const toml::table& table, const std::string& origin,
                 std::vector<ConfigKey>& keys) {
  for (const auto& [section, node] : table) {
    const std::string section_name(section.str());
    if (!node.is_table()) unknown_key(origin, section_name, keys);
    for (const auto& [key_text, value] : *node.as_table()) {
      const std::string name = section_name + "." + std::string(key_text.str());
      const auto key = std::ranges::find(keys, name, &ConfigKey::name);
      const auto line = value.source().begin.line;
      const std::string where = line > 0 ? fmt::format("{} line {}", origin, line) : origin;
      if (key == keys.end()) unknown_key(where, name, keys);
      set_value(*key, value, where);
      key->given = true;
    }
  }
}

/// A list on the command line, a,b or [a, b], as TOML writes it.
std::string written_list(const ConfigKey& key, const std::string& text) {
  if (text.starts_with('[')) return text;
  if (std::holds_alternative<std::vector<int64_t>*>(key.value)) return fmt::format("[{}]", text);
  const std::regex word("[^,]+");
  return fmt::format("[{}]", std::regex_replace(text, word, "'$&'"));
}

void apply_override(const std::string& text, std::vector<ConfigKey>& keys) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  DISTCA_THROW_IF(equals == std::string::npos, ErrorKind::kConfig,
                  "{}: an override is section.key=value", text);
  const auto key = std::ranges::find(keys, name, &ConfigKey::name);
  if (key == keys.end()) unknown_key("command line", name, keys);
  const std::string value = text.substr(equals + 1);
  key->given = true;
  // Words need no quotes on a command line.
  if (is_text(*key)) return set_text(*key, value, "command line");
  toml::table parsed{{"value", value}};
  const std::string written = is_list(*key) ? written_list(*key, value) : value;
  const bool is_auto = std::holds_alternative<Tolerance*>(key->value) && value == "auto";
  bool is_value = true;
  try {
    if (!is_auto) parsed = toml::parse("value = " + written);
    is_value = parsed.size() == 1;  // no further lines
  } catch (const toml::parse_error&) {
    is_value = false;
  }
  DISTCA_THROW_IF(!is_value, ErrorKind::kConfig, "command line: {} = {}: not {}", name, value,
                  wanted(*key));
  set_value(*key, *parsed.get("value"), "command line");
}

void check_servers(const Config& config) {
  const Config::Servers& servers = config.servers;
  DISTCA_THROW_IF(servers.dedicated == 0 && !servers.in_place, ErrorKind::kConfig,
                  "servers.in_place = false with servers.dedicated = 0: nobody would compute "
                  "attention; set servers.dedicated to at least 1");
  DISTCA_THROW_IF(
      !servers.in_place && !servers.capacity.empty(), ErrorKind::kConfig,
      "servers.capacity = {} with servers.in_place = false: give workers a capacity of 0 "
      "and leave servers.in_place alone",
      fmt::join(servers.capacity, ","));
  DISTCA_THROW_IF(
      servers.reweight && !servers.capacity.empty(), ErrorKind::kConfig,
      "servers.reweight = true with servers.capacity = {}: capacities are either measured "
      "or given",
      fmt::join(servers.capacity, ","));
  DISTCA_THROW_IF(servers.reweight && config.train.deterministic, ErrorKind::kConfig,
                  "servers.reweight = true with train.deterministic = true: measured times would "
                  "enter the plans; set train.deterministic=false, or give servers.capacity");
  DISTCA_THROW_IF((servers.dedicated > 0 || !servers.capacity.empty() || servers.reweight) &&
                      !find_scheduler(config.plan.scheduler).capacities,
                  ErrorKind::kConfig,
                  "{} with plan.scheduler = {}: it keeps attention where the queries live; use "
                  "balanced or greedy",
                  servers.dedicated > 0 ? fmt::format("servers.dedicated = {}", servers.dedicated)
                  : servers.reweight
                      ? "servers.reweight = true"
                      : fmt::format("servers.capacity = {}", fmt::join(servers.capacity, ",")),
                  config.plan.scheduler);
}

void check_schedule(const Config& config) {
  const Config::Optimizer& o = config.optimizer;
  DISTCA_THROW_IF(
      o.decay_steps > 0 && o.warmup_steps >= o.decay_steps, ErrorKind::kConfig,
      "optimizer.decay_steps = {} with optimizer.warmup_steps = {}: the warm-up is part "
      "of decay_steps and must be shorter",
      o.decay_steps, o.warmup_steps);
  if (o.schedule != Config::Optimizer::Decay::kWsd) return;
  DISTCA_THROW_IF(o.wsd_decay_steps == 0, ErrorKind::kConfig,
                  "optimizer.schedule = wsd with optimizer.wsd_decay_steps = 0: say in how many "
                  "steps the learning rate falls at the end");
  DISTCA_THROW_IF(o.warmup_steps + o.wsd_decay_steps > config.decay_end(), ErrorKind::kConfig,
                  "optimizer.wsd_decay_steps = {}: with optimizer.warmup_steps = {} that is more "
                  "than {} = {}",
                  o.wsd_decay_steps, o.warmup_steps,
                  o.decay_steps > 0 ? "optimizer.decay_steps" : "train.steps", config.decay_end());
}

/// Refuses settings that need one plan for all layers if layers have plans of their own.
void check_windows(const Config& config) {
  if (!config.model.windows_differ()) return;
  const auto refuse = [](bool given, const std::string& key, std::string_view why) {
    DISTCA_THROW_IF(given, ErrorKind::kConfig,
                    "{} with windows that differ by layer (model.layer_types): {}; leave it out",
                    key, why);
  };
  const int64_t stages = config.parallel.pipeline_model_parallel_size;
  refuse(stages > 1, fmt::format("parallel.pipeline_model_parallel_size = {}", stages),
         "a tick would pool layers of different windows");
  refuse(config.servers.reweight, "servers.reweight = true",
         "times are measured over all layers, and each window has a plan of its own");
  refuse(config.plan.tolerance.is_auto, "plan.tolerance = auto",
         "it chooses a layout for one plan, and all windows share one");
  refuse(config.plan.max_memory_gib > 0,
         fmt::format("plan.max_memory_gib = {}", config.plan.max_memory_gib),
         "each window has a plan of its own, and none knows what the others keep");
}

void finish(Config& config, const std::vector<ConfigKey>& keys) {
  BatchOptions& batch = config.batch;
  if (batch.max_document_tokens == 0) batch.max_document_tokens = batch.nano_batch_tokens;
  DISTCA_THROW_IF(batch.max_document_tokens > batch.nano_batch_tokens, ErrorKind::kConfig,
                  "batch.max_document_tokens = {} is more than batch.nano_batch_tokens = {}",
                  batch.max_document_tokens, batch.nano_batch_tokens);
  DISTCA_THROW_IF(config.data.validation_fraction >= 1, ErrorKind::kConfig,
                  "data.validation_fraction = {}: must be below 1",
                  config.data.validation_fraction);
  for (const auto& [name, beta] :
       {std::pair("beta1", config.optimizer.beta1), std::pair("beta2", config.optimizer.beta2)}) {
    DISTCA_THROW_IF(beta >= 1, ErrorKind::kConfig, "optimizer.{} = {}: must be below 1", name,
                    beta);
  }
  check_schedule(config);
  const double share = config.plan.tolerance.share.value_or(0);
  DISTCA_THROW_IF(share < 0, ErrorKind::kConfig,
                  "plan.tolerance = {}: must be at least 0, or -1 for the scheduler's own, or auto",
                  share);
  check_servers(config);
  DISTCA_THROW_IF(
      config.on_cuda() && config.comm.backend == Config::Comm::Backend::kGloo, ErrorKind::kConfig,
      "comm.backend = gloo with train.device = cuda: gloo carries host memory only; with "
      "comm.backend=nccl each rank has a GPU, with comm.backend=threads all ranks share one");
  DISTCA_THROW_IF(config.train.output_dir.empty(), ErrorKind::kConfig,
                  "train.output_dir is empty: name a folder for the run");
  config.attention_profile = profile_by_name(config.plan.profile);
  take_model_from(config, keys);
  config.model.check();
  vocabulary_of(config);
  check_windows(config);
  check_tensor(config);
  check_pipeline(config);
  const std::string fault = kernel_fault(kernel_request(config));
  DISTCA_THROW_IF(!fault.empty(), ErrorKind::kConfig, "attention.kernel = {} {}",
                  kernel_name(config.attention.kernel), fault);
}

}  // namespace

bool measures_speeds(const Config& config) {
  return !config.train.deterministic && (config.servers.reweight || config.plan.tolerance.is_auto);
}

int num_ranks(const Config& config, int num_workers) {
  return num_workers + static_cast<int>(config.servers.dedicated);
}

int num_servers(const Config& config, int num_workers) {
  return num_workers + static_cast<int>(config.servers.dedicated) / config.tensor_ranks();
}

Config load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  Config config;
  std::vector<ConfigKey> keys = config_keys(config);
  if (!path.empty()) {
    const std::string text = read_file(path, ErrorKind::kConfig);
    try {
      apply_table(toml::parse(text), path.string(), keys);
    } catch (const toml::parse_error& error) {
      DISTCA_THROW_IF(Json::accept(text), ErrorKind::kConfig,
                      "{}: it is JSON, and a configuration is TOML, such as configs/demo.toml; the "
                      "folder of a model of Hugging Face is model.from",
                      path.string());
      throw Error(ErrorKind::kConfig, "{} line {}: {}", path.string(), error.source().begin.line,
                  error.description());
    }
  }
  for (const std::string& override_text : overrides) apply_override(override_text, keys);
  finish(config, keys);
  return config;
}

namespace {

std::string shown_text(const std::string& text) {
  return (std::ostringstream() << toml::value<std::string>(text)).str();
}

/// With a point: TOML would take it for a whole number.
std::string shown_number(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace

std::string shown_value(const ConfigKey& key) {
  return std::visit(
      Overloaded{[](int64_t* v) { return fmt::format("{}", *v); },
                 [](double* v) { return shown_number(*v); },
                 [](Tolerance* v) {
                   if (v->is_auto) return std::string("\"auto\"");
                   return shown_number(v->share.value_or(-1));
                 },
                 [](const WordValue& v) { return fmt::format("'{}'", v.word()); },
                 [](bool* v) { return fmt::format("{}", *v); },
                 [](std::string* v) { return shown_text(*v); },
                 [](std::vector<int64_t>* v) { return fmt::format("[{}]", fmt::join(*v, ", ")); },
                 [](std::vector<std::string>* v) {
                   std::vector<std::string> words;
                   std::ranges::transform(*v, std::back_inserter(words), shown_text);
                   return fmt::format("[{}]", fmt::join(words, ", "));
                 }},
      key.value);
}

namespace {

/// Adds the line of a key, with its reason above it, and its unit and default behind it.
void add_key(std::string& text, const ConfigKey& key, const ConfigKey& standard) {
  constexpr size_t kWidth = 98;
  const std::string word = key.name.substr(key.name.find('.') + 1);
  const std::string choices = key.choices.empty() ? "" : fmt::format("; one of {}", listed(key));
  for (const std::string& line : wrapped(key.reason + choices, kWidth)) text += "# " + line + "\n";
  text += fmt::format("{} = {}  # {}default {}\n", word, shown_value(key),
                      key.unit.empty() ? "" : key.unit + "; ", shown_value(standard));
}

std::string config_text(Config config, bool explained) {
  Config defaults;
  defaults.batch.max_document_tokens = defaults.batch.nano_batch_tokens;
  const std::vector<ConfigKey> keys = config_keys(config), default_keys = config_keys(defaults);
  std::string text, section;
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t dot = keys[i].name.find('.');
    if (keys[i].name.substr(0, dot) != section) {
      text += section.empty() ? "" : "\n";
      section = keys[i].name.substr(0, dot);
      text += fmt::format("[{}]\n", section);
    }
    if (explained) {
      add_key(text, keys[i], default_keys[i]);
    } else {
      text += fmt::format("{} = {}\n", keys[i].name.substr(dot + 1), shown_value(keys[i]));
    }
  }
  return text;
}

}  // namespace

std::string print_config(Config config) { return config_text(std::move(config), true); }

std::string recorded_config(Config config) {
  return "# Every key of this run; distca train --print-config explains them.\n" +
         config_text(std::move(config), false);
}

}  // namespace distca
