#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/rows.h"

namespace kv {

// The finished cases of a run, so that one that was killed goes on where it stopped. One file a case under
// <out>/cases, named by the hash of everything that determines its rows; written beside, synced, renamed, and led by a
// checksum, so a torn or altered file counts as not there.
class Journal {
 public:
  // Creates the folder and writes a test file to it: a full or read-only disk shows before hours of work. UserError,
  // and no empty folder stays behind.
  explicit Journal(const std::filesystem::path& out);

  void forget() const;  // drops every finished case
  std::optional<std::vector<Row>> find(const std::string& key, const std::vector<std::string>& axes) const;
  void store(const std::string& key, const std::vector<std::string>& axes, const std::vector<Row>& rows) const;
  void remove() const;  // the run is complete

 private:
  std::filesystem::path file_of(const std::string& key) const;

  std::filesystem::path folder_;
};

}  // namespace kv
