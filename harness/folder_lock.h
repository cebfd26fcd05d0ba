#pragma once

#include <filesystem>
#include <string_view>

namespace kv {

// A folder that is there, taken for this process until destroyed (flock, so a killed one holds nothing). On a file
// system without locks that is said, and two writers at once are the user's to avoid.
class FolderLock {
 public:
  // UserError where it cannot be opened, or another process has it: "'<path>' is being written by another <by>".
  FolderLock(const std::filesystem::path& path, std::string_view by);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  void sync() const;  // the names in it are on disk

 private:
  int descriptor_ = -1;
};

}  // namespace kv
