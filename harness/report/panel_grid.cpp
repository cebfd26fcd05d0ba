#include <numeric>

#include "harness/report/plot_parts.h"

namespace kv {
namespace {

constexpr std::size_t kFewPanels = 12;

}  // namespace

std::vector<std::string> sorted_labels(std::vector<std::string> labels) {
  const bool numbers = std::all_of(labels.begin(), labels.end(), [](const auto& label) { return parse_number(label); });
  if (numbers) {
    std::stable_sort(labels.begin(), labels.end(),
                     [](const auto& a, const auto& b) { return *parse_number(a) < *parse_number(b); });
  }
  return labels;
}

PanelGrid arrange_panels(const std::vector<Key>& facets) {
  PanelGrid grid{.cells = static_cast<int>(facets.size()), .places = std::vector<int>(facets.size())};
  std::iota(grid.places.begin(), grid.places.end(), 0);
  if (facets.size() <= kFewPanels || facets.front().size() < 2) return grid;
  std::vector<Key> rows;
  std::vector<std::string> columns;
  for (const Key& facet : facets) {
    find_or_add(
        rows, [&](const Key& row) { return std::equal(row.begin(), row.end(), facet.begin()); },
        Key(facet.begin(), facet.end() - 1));
    find_or_add(
        columns, [&](const std::string& column) { return column == facet.back(); }, facet.back());
  }
  columns = sorted_labels(std::move(columns));
  grid.columns = static_cast<int>(columns.size());
  grid.cells = grid.columns * static_cast<int>(rows.size());
  for (std::size_t i = 0; i < facets.size(); ++i) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Key& key) {
      return std::equal(key.begin(), key.end(), facets[i].begin());
    });
    const auto column = std::find(columns.begin(), columns.end(), facets[i].back());
    grid.places[i] = static_cast<int>((row - rows.begin()) * grid.columns + (column - columns.begin()));
  }
  return grid;
}

}  // namespace kv
