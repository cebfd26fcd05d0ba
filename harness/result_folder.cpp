#include "harness/result_folder.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "harness/files.h"
#include "harness/rows_file.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr size_t kProbeBytes = size_t{1} << 20;  // about what the rows of a large run take
constexpr const char* kProbe = ".probe";
constexpr const char* kIncomplete = ".next.partial";
constexpr const char* kComplete = ".next";

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw UserError(fmt::format("cannot create '{}': {}", folder.string(), error.message()));
}

}  // namespace

ResultFolder::ResultFolder(const fs::path& path) : path_(path) {
  std::error_code error;
  const bool existed = fs::exists(path, error);
  create_folder(path);
  try {
    lock_.emplace(path, "kvlab run or report; wait for it, or name another folder");
    write_atomically(path / kProbe, std::string(kProbeBytes, '\n'));
    fs::remove(path / kProbe, error);
    move_in();
  } catch (const UserError&) {
    lock_.reset();
    if (!existed) fs::remove(path, error);  // only if it is empty
    throw;
  }
}

void ResultFolder::replace(const std::function<void(const fs::path&)>& write) const {
  std::error_code error;
  const fs::path incomplete = path_ / kIncomplete;
  fs::remove_all(incomplete, error);
  create_folder(incomplete);
  try {
    write(incomplete);
  } catch (...) {
    fs::remove_all(incomplete, error);
    throw;
  }
  fs::rename(incomplete, path_ / kComplete, error);
  if (error) {
    throw UserError(fmt::format("cannot write '{}': {}", (path_ / kComplete).string(), error.message()));
  }
  lock_->sync();  // from here on the new files are the result
  move_in();
}

void ResultFolder::move_in() const {
  std::error_code error;
  const fs::path complete = path_ / kComplete;
  if (!fs::exists(complete, error)) return;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(complete)) files.push_back(entry.path());
  for (const fs::path& file : files) {
    const fs::path target = path_ / file.filename();
    fs::rename(file, target, error);
    if (error) throw UserError(fmt::format("cannot write '{}': {}", target.string(), error.message()));
    if (target.filename() == "rows.csv") fs::remove(packed_rows(target), error);
  }
  fs::remove(complete, error);
  lock_->sync();
}

}  // namespace kv
