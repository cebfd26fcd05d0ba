#pragma once

#include <filesystem>
#include <functional>

namespace kv {

// A result folder that this process alone writes to. Until a run is complete, what an earlier one left there stays as
// it is: files are made in a folder beside them and moved in together.
class ResultFolder {
 public:
  // Creates the folder, takes it for this process (flock, so a killed one holds nothing), writes a test file to it (a
  // full or read-only disk shows before hours of work), and ends what a run that was killed while its files moved in
  // had begun. UserError where another process has it or nothing can be written; a folder that was not there before
  // does not stay behind.
  explicit ResultFolder(const std::filesystem::path& path);
  ~ResultFolder();
  ResultFolder(const ResultFolder&) = delete;
  ResultFolder& operator=(const ResultFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Calls write(folder) with an empty folder, and then replaces each file of that name here by the one it wrote: all of
  // them even where the process is killed in between, because the next ResultFolder goes on. If it throws, nothing
  // changes. Rows that were packed give way to new ones.
  void replace(const std::function<void(const std::filesystem::path&)>& write) const;

 private:
  void lock() const;  // on a file system without locks that is said, and two runs at once are the user's to avoid
  void move_in() const;

  std::filesystem::path path_;
  int lock_ = -1;  // a descriptor of the folder
};

}  // namespace kv
