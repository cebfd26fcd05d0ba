#include "harness/report/partners.h"

#include <algorithm>
#include <span>

namespace kv {
namespace {

// A cell that another is compared with, by its key.
struct Wanted {
  Key key;
  int sign = -1;
};

// Those of a cell; none of one that has a compared value itself. `compared`: the places of the columns compared.
std::vector<Wanted> wanted_by(const Key& key, const std::vector<std::string>& columns, const Pairing& pairing,
                              std::vector<std::size_t>& compared) {
  const std::size_t first = place_among(columns, pairing.column);
  compared = {first};
  if (same_value(key[first], pairing.with)) return {};
  Key other = key;
  other[first] = pairing.with;
  if (!pairing.beside) return {{.key = other}};
  const std::size_t second = place_among(columns, pairing.beside->column);
  compared.push_back(second);
  if (same_value(key[second], pairing.beside->with)) return {};
  Key beside = key, both = other;
  beside[second] = both[second] = pairing.beside->with;
  return {{.key = other}, {.key = beside}, {.key = both, .sign = 1}};
}

// The cell of that key; in what is compared loose fits are none.
BestFit<Pile> find_pile(const Wanted& wanted, std::span<const std::size_t> compared, const std::map<Key, Pile>& piles) {
  BestFit<Pile> best;
  for (const auto& [key, pile] : piles) {
    const bool compares = std::all_of(compared.begin(), compared.end(),
                                      [&, &other = key](std::size_t i) { return same_value(other[i], wanted.key[i]); });
    if (compares) best.offer(match(wanted.key, key), pile);
  }
  return best;
}

}  // namespace

Partners partners_of(const Key& key, const std::map<Key, Pile>& piles, const std::vector<std::string>& columns,
                     const Pairing& pairing) {
  Partners out;
  std::vector<std::size_t> compared;
  const std::vector<Wanted> all = wanted_by(key, columns, pairing, compared);
  for (const Wanted& wanted : all) {
    const BestFit<Pile> best = find_pile(wanted, compared, piles);
    out.several = out.several || best.several();
    if (best.found()) out.terms.push_back({.pile = best.found(), .sign = wanted.sign});
  }
  if (out.terms.size() < all.size()) out.terms.clear();
  return out;
}

}  // namespace kv
