#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/rows.h"

namespace kv {

// A finished unit of work.
struct FinishedUnit {
  std::vector<Row> rows{};
  double seconds = 0;  // that it took
};

// The finished units of a result folder, by the hash of everything that determines their rows (harness/unit_key.h).
// They stay when a run is complete, so that one that is killed goes on where it stopped, and one that is run again,
// narrowed or widened computes only what is new. One file for each version of the code, since units of another one are
// not of use to this: <out>/units/<code>.units, to which a unit is appended and synced. Each has a checksum: one that
// is torn or altered counts as not there.
class Journal {
 public:
  // `code` names the version. The folder is the caller's alone; nothing is created before the first store().
  Journal(const std::filesystem::path& out, const std::string& code);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  void forget();  // drops the finished units of all versions
  std::optional<FinishedUnit> find(const std::string& key, const std::vector<std::string>& axes) const;
  // Returns the unit as find() will: values in the digits that are written. UserError where it cannot be written; then
  // the file is as before.
  FinishedUnit store(const std::string& key, const std::vector<std::string>& axes, const FinishedUnit& unit);

 private:
  struct Entry {
    int64_t offset = 0;  // of the rows
    int64_t bytes = 0;
    double seconds = 0;
    std::string digest{};
  };

  void open(int flags);
  void index();
  std::optional<FinishedUnit> read(const Entry& entry, const std::vector<std::string>& axes) const;

  std::filesystem::path folder_;
  std::filesystem::path file_;
  int descriptor_ = -1;  // −1 as long as there is no file
  int64_t size_ = 0;
  bool torn_ = false;  // the last unit lacks its end
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace kv
