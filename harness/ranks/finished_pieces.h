#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kv {

// A batch of a workload's samples whose units are all in the journal.
struct FinishedPiece {
  std::vector<std::string> prompts{};  // as UnitRunner has them
  std::vector<std::string> keys{};     // of its units, [cases]

  bool operator==(const FinishedPiece&) const = default;
};

// What ranks have finished, so that who assembles the rows need not open each batch again, which draws all its texts,
// to know by which keys its units are in the journal.
class FinishedPieces {
 public:
  // `first`: the number of its first sample.
  void add(std::size_t workload, int first, FinishedPiece piece);
  // Null: nobody has said so.
  const FinishedPiece* find(std::size_t workload, int first) const;

  // For another rank's merge(), which fails KV_CHECK on anything else.
  std::string text() const;
  void merge(const std::string& text);

 private:
  std::map<std::pair<std::size_t, int>, FinishedPiece> pieces_;
};

}  // namespace kv
