#include "harness/report/equal_size.h"

#include <algorithm>
#include <array>

#include "harness/clusters.h"

namespace kv {
namespace {

struct Setting {
  double size = 0;
  std::array<double, 2> number{};  // a value, or numerator and denominator
};

std::vector<std::string> setting_key(const Row& row) {
  std::vector<std::string> key = sample_key(row);
  key.push_back(row.policy);
  key.insert(key.end(), row.axes.begin(), row.axes.end());
  return key;
}

// By ascending size, each size once.
std::vector<Setting> settings_of(const Places& places, const std::map<std::size_t, double>& sizes,
                                 const Measure& measure) {
  std::map<double, std::vector<std::array<double, 2>>> by_size;
  for (const auto& [place, sums] : places) {
    const auto size = sizes.find(place);
    const auto number = number_of(sums, measure);
    if (size != sizes.end() && number) by_size[size->second].push_back(*number);
  }
  std::vector<Setting> settings;
  for (const auto& [size, numbers] : by_size) {
    Setting& setting = settings.emplace_back(Setting{.size = size});
    for (const auto& number : numbers) {
      for (std::size_t i = 0; i < number.size(); ++i) setting.number[i] += number[i];
    }
    for (double& part : setting.number) part /= static_cast<double>(numbers.size());
  }
  return settings;
}

std::optional<std::array<double, 2>> interpolated(const std::vector<Setting>& settings, double size) {
  const auto above = std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.size >= size; });
  if (above == settings.end()) return std::nullopt;
  if (above->size == size) return above->number;
  if (above == settings.begin()) return std::nullopt;
  const Setting& below = *(above - 1);
  const double share = (size - below.size) / (above->size - below.size);
  std::array<double, 2> number{};
  for (std::size_t i = 0; i < number.size(); ++i) {
    number[i] = below.number[i] + share * (above->number[i] - below.number[i]);
  }
  return number;
}

void leave_out(const std::vector<Setting>& settings, Outside& outside) {
  ++outside.samples;
  if (settings.empty()) return;
  const double low = settings.front().size, high = settings.back().size;
  outside.low = outside.settings == 0 ? low : std::min(outside.low, low);
  outside.high = outside.settings == 0 ? high : std::max(outside.high, high);
  outside.settings = std::max(outside.settings, static_cast<int>(settings.size()));
}

}  // namespace

Sizes::Sizes(const RowTable& table, const std::string& metric) {
  for (const Row& row : table.rows) {
    if (row.metric == metric && row.value) sums_[setting_key(row)].add(*row.value);
  }
}

std::optional<double> Sizes::of(const Row& row) const {
  const auto found = sums_.find(setting_key(row));
  return found == sums_.end() ? std::nullopt : std::optional(found->second.total / found->second.count);
}

bool tells_settings(const RowTable& table, const std::string& column) {
  return column == "policy" || std::find(table.axes.begin(), table.axes.end(), column) != table.axes.end();
}

Pile at_size(const Pile& pile, double size, const Measure& measure) {
  Pile out{.skipped = pile.skipped, .reason = pile.reason, .unit = pile.unit, .spread = pile.spread};
  std::vector<const Key*> samples(pile.samples.size());
  for (const auto& [sample, number] : pile.index) samples[number] = &sample;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const std::vector<Setting> settings = settings_of(pile.samples[s], pile.sizes[s], measure);
    const auto value = interpolated(settings, size);
    if (!value) {
      leave_out(settings, out.outside);
      continue;
    }
    out.index[*samples[s]] = out.samples.size();
    out.documents.push_back(pile.documents[s]);
    Places& places = out.samples.emplace_back();
    for (std::size_t i = 0; i < value->size(); ++i) places[0][i].add((*value)[i]);
  }
  return out;
}

}  // namespace kv
