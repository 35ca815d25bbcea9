#include "cli/text_tokenizer.h"

#include <algorithm>
#include <sstream>
#include <system_error>

#include "cli/python_verb.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/utf8.h"
#include "distca/batch/tokenizer_files.h"

namespace distca::cli {
namespace {

constexpr const char* kVerb = "distca-tokenize";

class ByteTokenizer : public TextTokenizer {
 public:
  std::vector<int64_t> ids(const std::string& prompt) override {
    std::vector<int64_t> bytes;
    for (const char byte : prompt) bytes.push_back(static_cast<unsigned char>(byte));
    return bytes;
  }
  std::string add(int64_t id) override {
    if (id < 256) return stream_.add(static_cast<unsigned char>(id));
    return rest() + std::string(kNoCharacter);  // the model has more ids than there are bytes
  }
  std::string rest() override { return stream_.rest(); }

 private:
  Utf8Stream stream_;
};

class PythonTokenizer : public TextTokenizer {
 public:
  PythonTokenizer(const std::filesystem::path& file, bool special)
      : verb_(kVerb, {file.string(), special ? "special" : "no-special"}) {}
  std::vector<int64_t> ids(const std::string& prompt) override {
    return ask(prompt).get<std::vector<int64_t>>();
  }
  std::string add(int64_t id) override { return ask(id).get<std::string>(); }
  std::string rest() override { return ask(nullptr).get<std::string>(); }

 private:
  Json ask(const Json& what) {
    verb_.write(what.dump() + "\n");  // where it has ended, line() says so
    const std::string line = verb_.line();
    Json answer = parse_json(line, kVerb, ErrorKind::kIo);
    DISTCA_THROW_IF(answer.is_object(), ErrorKind::kData, "{}",
                    answer.at("error").get<std::string>());
    return answer;
  }

  PythonVerb verb_;
};

class IdWords : public TextTokenizer {
 public:
  std::vector<int64_t> ids(const std::string& prompt) override {
    std::vector<int64_t> numbers;
    std::string text = prompt;
    std::ranges::replace(text, ',', ' ');
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      const bool right = word.size() < 19 &&
                         std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
      DISTCA_THROW_IF(!right, ErrorKind::kUsage, "--ids: \"{}\" is no token id", word);
      numbers.push_back(std::stoll(word));
    }
    return numbers;
  }
  std::string add(int64_t id) override { return fmt::format(" {}", id); }
};

}  // namespace

std::unique_ptr<TextTokenizer> tokenizer_of(const std::filesystem::path& folder, bool special) {
  const std::filesystem::path file = folder / kTokenizerJson;
  std::error_code ignored;
  DISTCA_THROW_IF(!std::filesystem::exists(file, ignored), ErrorKind::kUsage,
                  "{}: has no {}: give the --ids of a prompt instead of a text", folder.string(),
                  kTokenizerJson);
  if (read_file(file, ErrorKind::kData) == byte_tokenizer().at(kTokenizerJson))
    return std::make_unique<ByteTokenizer>();
  return std::make_unique<PythonTokenizer>(file, special);
}

std::unique_ptr<TextTokenizer> id_words() { return std::make_unique<IdWords>(); }

}  // namespace distca::cli
