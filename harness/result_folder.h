#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "harness/folder_lock.h"

namespace kv {

// A result folder that this process alone writes to. Until a run is complete, what an earlier one left there stays as
// it is: files are made in a folder beside them and moved in together.
class ResultFolder {
 public:
  // Creates the folder, takes it for this process (FolderLock), writes a test file to it (a full or read-only disk
  // shows before hours of work), and ends what a run that was killed while its files moved in had begun. UserError
  // where another process has it or nothing can be written; a folder that was not there before does not stay behind.
  explicit ResultFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // Calls write(folder) with an empty folder, and then replaces each file of that name here by the one it wrote: all of
  // them even where the process is killed in between, because the next ResultFolder goes on. If it throws, nothing
  // changes. Rows that were packed give way to new ones.
  void replace(const std::function<void(const std::filesystem::path&)>& write) const;

 private:
  void move_in() const;

  std::filesystem::path path_;
  std::optional<FolderLock> lock_;
};

}  // namespace kv
