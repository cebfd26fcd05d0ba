#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kv {

// What a spec says of a paper's claims, as data: `verdict` of a spec (harness/spec/verdict_reader.cpp).

enum class Outcome : std::uint8_t { kReproduced, kPartly, kDiffers, kUntestable };

// What the number of a cell is taken from: nothing, another cell of the table, or the paper's number of that cell.
enum class Against : std::uint8_t { kNothing, kCell, kPaper };

// Numbers of one table of the spec, and the bound that each of them has to keep. `cell` picks cells by the values of
// some of the table's rows and columns; those that it does not name are free, and every cell that is left counts.
struct VerdictCheck {
  using Values =
      std::vector<std::pair<std::string, std::vector<std::string>>>;  // column -> accepted values, as written
  std::string table{};
  Values cell{};
  Against against = Against::kNothing;
  bool relative = false;                          // the number over the other one; else the number less it
  Values partner{};                               // of kCell: columns whose values are others, one value each
  std::optional<double> below{}, above{};         // at least one of these and `within`, unless the number is only shown
  std::optional<std::array<double, 2>> within{};  // both ends keep it
  bool whole_interval = false;                    // the 95 % interval keeps the bound, not the number alone
  bool in_some = false;                           // one cell is enough
};

// A verdict is computed: untestable where a check of `testable` fails or a check finds no number, reproduced where all
// of `reproduced` hold, partly where all of `partly` do, else differs. Or it is a judgement, printed with `numbers`.
struct VerdictPlan {
  std::vector<std::string> items{};  // "001 Table 2"
  std::string criterion{};
  bool beforehand = false;  // the criterion was committed before the first rows
  std::string since{};      // the day on which it was, YYYY-MM-DD
  std::string commit{};     // which says so; may be empty
  std::vector<VerdictCheck> testable{}, reproduced{}, partly{};
  std::optional<Outcome> judged{};
  std::vector<VerdictCheck> numbers{};
  std::string note{};
  std::string where{};  // its place in the spec
};

const char* name_of(Outcome outcome);

}  // namespace kv
