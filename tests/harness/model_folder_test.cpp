#include "harness/model_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "kernels/error.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// A cache of the layout that hf download makes, in a folder of its own.
class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable : kVariables) unsetenv(variable);
  }
  void TearDown() override {
    for (const char* variable : kVariables) unsetenv(variable);
  }

  fs::path add(const fs::path& cache, const std::string& commit) const {
    const fs::path repository = cache / "models--owner--small-1b";
    fs::create_directories(repository / "snapshots" / commit);
    fs::create_directories(repository / "refs");
    std::ofstream(repository / "refs/main") << commit << "\n";
    return repository / "snapshots" / commit;
  }

  static constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"};
  test::TempFolder temporary_;
  const fs::path& folder_ = temporary_.path();
};

TEST_F(ModelFolder, IsTheSnapshotOfRefsMainInTheFirstCacheThatIsSet) {
  const fs::path home = add(folder_ / "home/hub", "aaa"), old = add(folder_ / "old", "bbb"),
                 cache = add(folder_ / "cache", "ccc");
  fs::create_directories(folder_ / "cache/models--owner--small-1b/snapshots/ddd");
  setenv("HF_HOME", (folder_ / "home").c_str(), 1);
  EXPECT_EQ(find_model("owner/small-1b"), home);
  setenv("HUGGINGFACE_HUB_CACHE", (folder_ / "old").c_str(), 1);
  EXPECT_EQ(find_model("owner/small-1b"), old);
  setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
  EXPECT_EQ(find_model("owner/small-1b"), cache);
}

TEST_F(ModelFolder, AFolderGoesBeforeTheCache) {
  setenv("HF_HUB_CACHE", folder_.c_str(), 1);
  add(folder_, "aaa");
  fs::create_directories(folder_ / "here");
  EXPECT_EQ(find_model((folder_ / "here").string()), folder_ / "here");
}

TEST_F(ModelFolder, AnAbsentModelSaysWhereItWasLookedForAndHowToGetIt) {
  setenv("HF_HUB_CACHE", folder_.c_str(), 1);
  const auto error_of = [](const std::string& name) -> std::string {
    try {
      return find_model(name).string();
    } catch (const UserError& error) {
      return error.what();
    }
  };
  const std::string absent = "model 'owner/small-1b': no such folder, and " + folder_.string() +
                             "/models--owner--small-1b has no snapshot in refs/main; get it with: hf download "
                             "owner/small-1b";
  EXPECT_EQ(error_of("owner/small-1b"), absent);
  fs::remove(add(folder_, "aaa"));  // the cache was cleaned, refs/main stays
  EXPECT_EQ(error_of("owner/small-1b"), absent);
  EXPECT_EQ(
      error_of("a/b/c"),
      "model 'a/b/c': no such folder, expected one with config.json, a .gguf file, or OWNER/NAME of Hugging Face");
  std::ofstream(folder_ / "models--owner--small-1b/refs/main") << "../../..";
  EXPECT_EQ(error_of("owner/small-1b"), absent);
}

TEST_F(ModelFolder, RowsCallACachedModelByItsName) {
  EXPECT_EQ(model_name(add(folder_, "aaa")), "small-1b");
  EXPECT_EQ(model_name(folder_ / "llama"), "llama");
}

TEST_F(ModelFolder, ALinkedFileIsCalledWhatTheLinkIsCalled) {
  const fs::path snapshot = add(folder_, "aaa"), blob = snapshot.parent_path().parent_path() / "blobs/0c1d";
  fs::create_directories(blob.parent_path());
  std::ofstream(blob) << "weights";
  fs::create_symlink(blob, snapshot / "small-1b.Q4_1.gguf");
  EXPECT_EQ(model_name(snapshot / "small-1b.Q4_1.gguf"), "small-1b.Q4_1");
}

}  // namespace
}  // namespace kv
