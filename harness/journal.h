#pragma once

#include <filesystem>
#include <optional>
#include <string>
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
// narrowed or widened computes only what is new. A file a unit, <out>/units/<code>/<key>, written whole or not at all,
// so that several processes, on several machines, can finish units of one folder: no file has two writers but of the
// same content. Units of another version of the code are not of use to this one, and lie beside. Each has a checksum:
// one that is torn or altered counts as not there.
class Journal {
 public:
  // `code` names the version. Nothing is created before the first store().
  Journal(const std::filesystem::path& out, const std::string& code);

  void forget() const;  // drops the finished units of all versions
  // Removes what writers that were killed have left. Nobody may be writing.
  void tidy() const;
  std::optional<FinishedUnit> find(const std::string& key, const std::vector<std::string>& axes) const;
  // Returns the unit as find() will: values in the digits that are written. UserError where it cannot be written; then
  // it is as before.
  FinishedUnit store(const std::string& key, const std::vector<std::string>& axes, const FinishedUnit& unit) const;

 private:
  std::filesystem::path all_, folder_;  // of every version, and of this one
};

}  // namespace kv
