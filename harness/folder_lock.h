#pragma once

#include <filesystem>
#include <string_view>

namespace kv {

// A folder that is there, taken for this process until destroyed (flock, so a killed one holds nothing). Who has it
// stands in a file there, for whoever is refused; where another machine's name is left in it though the folder is free,
// and on a file system without locks, that is said: locks may not reach that far, and two writers at once are then the
// user's to avoid.
class FolderLock {
 public:
  // UserError where it cannot be opened, or another process has it: "'<path>' is being written by process <number> on
  // <machine>, another <by>".
  FolderLock(const std::filesystem::path& path, std::string_view by);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  void sync() const;  // the names in it are on disk

 private:
  void note_holder() const;

  int descriptor_ = -1;
  std::filesystem::path holder_;  // the file that says who
};

}  // namespace kv
