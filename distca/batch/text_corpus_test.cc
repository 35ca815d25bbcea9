#include "distca/batch/text_corpus.h"

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

class TextCorpusTest : public FolderTest {
 protected:
  void put(const std::string& name, std::string_view text) {
    write_file_atomically(folder_ / "text" / name, text);
  }
  TextCorpus write(const std::vector<fs::path>& files) {
    return write_byte_dataset(files, folder_ / "out" / "set", [](int64_t) {});
  }
};

TEST_F(TextCorpusTest, files_come_sorted_each_once_and_only_those_that_match) {
  put("b.py", "b");
  put("a/z.py", "z");
  put("a/z.txt", "t");
  const TextFiles files =
      find_text_files({folder_ / "text", folder_ / "text" / "b.py"}, {.glob = "*.py"});
  EXPECT_EQ(files.paths, (std::vector<fs::path>{folder_ / "text/a/z.py", folder_ / "text/b.py"}));
}

TEST_F(TextCorpusTest, excluded_folders_and_files_are_left_out) {
  put("a/skip/b.py", "b");
  put("a/keep/c.py", "c");
  put("a/keep/test_c.py", "c");
  const TextFiles files = find_text_files({folder_ / "text"}, {.exclude = {"skip", "test_*"}});
  EXPECT_EQ(files.paths, (std::vector<fs::path>{folder_ / "text/a/keep/c.py"}));
}

TEST_F(TextCorpusTest, a_loop_of_links_is_not_followed) {
  put("a/b.py", "b");
  fs::create_directory_symlink(folder_ / "text", folder_ / "text" / "a" / "loop");
  fs::create_symlink("nowhere", folder_ / "text" / "broken.py");
  fs::create_symlink("a/b.py", folder_ / "text" / "linked.py");
  const TextFiles files = find_text_files({folder_ / "text"}, {});
  EXPECT_EQ(files.paths, (std::vector<fs::path>{folder_ / "text/a/b.py"})) << "once";
  EXPECT_EQ(files.links, 2);
}

TEST_F(TextCorpusTest, what_text_was_turned_into_is_no_text) {
  put("a.txt", "text");
  for (const char* name : {"set.bin", "set.idx", "set.json", "set.tokenizer/tokenizer.json",
                           "made.tokenizer/tokenizer.json"})
    put(name, "of a data set");
  put("notes.json", "text, too");
  const fs::path text = folder_ / "text";
  const std::vector<fs::path> made = {text / "made.json", text / "made.tokenizer"};
  EXPECT_EQ(find_text_files({text, folder_ / "text" / "."}, {}, made).paths,
            (std::vector<fs::path>{text / "./a.txt", text / "./notes.json"}));
  put("made.json", "text that would be lost");
  EXPECT_THROW(find_text_files({text / "made.json"}, {}, made), Error);
}

TEST_F(TextCorpusTest, bytes_are_tokens_and_empty_and_binary_files_are_skipped) {
  put("a.txt", "A\xff");
  put("b.txt", "");
  put("c.txt", std::string_view("x\0y", 3));
  const TextCorpus corpus = write(find_text_files({folder_ / "text"}, {}).paths);
  EXPECT_EQ(corpus.documents, 1);
  EXPECT_EQ(corpus.tokens, 2);
  EXPECT_EQ(corpus.empty, 1);
  EXPECT_EQ(corpus.binary, 1);
  const IndexedDataset dataset(folder_ / "out" / "set");
  std::vector<int32_t> tokens(2);
  EXPECT_FALSE(dataset.read(0, 0, tokens));
  EXPECT_EQ(tokens, (std::vector<int32_t>{'A', 255}));
}

TEST_F(TextCorpusTest, folders_without_text_are_refused_and_leave_no_file) {
  fs::create_directories(folder_ / "text");
  EXPECT_THROW(find_text_files({folder_ / "text"}, {}), Error);
  EXPECT_THROW(find_text_files({folder_ / "absent"}, {}), Error);
  put("empty", "");
  EXPECT_THROW(write(find_text_files({folder_ / "text"}, {}).paths), Error);
  EXPECT_TRUE(fs::is_empty(folder_ / "out"));
}

}  // namespace
}  // namespace distca
