#include <algorithm>
#include <set>

#include "sim/tasks/text.h"
#include "sim/tasks/words.h"

namespace kv {
namespace {

TaskText draw_key_value(const TaskDraw& draw) {
  constexpr size_t kBytesALine = 28;
  Random& random = draw.random;
  const size_t count = std::max<size_t>(4, draw.chars / kBytesALine);
  std::vector<std::string> keys;
  std::set<std::string> seen;
  while (keys.size() < count) {
    std::string key = random.chance(0.7) ? random_key(random) : random_hexadecimal_key(random);
    if (seen.insert(key).second) keys.push_back(std::move(key));
  }
  std::vector<std::string> values;
  for (size_t i = 0; i < count; ++i) values.push_back(random_value(random));

  const auto limit = static_cast<size_t>(option_or(draw.options.questions, "questions", 1, 1000, 24));
  const auto chosen = random.sample(count, std::min(count, limit));
  const std::set<size_t> chosen_lines(chosen.begin(), chosen.end());
  TextWriter writer;
  std::vector<ByteRange> lines;
  for (size_t i = 0; i < count; ++i) {
    lines.push_back(
        writer.add(keys[i] + ": " + values[i], chosen_lines.contains(i) ? Label::kNeedle : Label::kContext));
    writer.add("\n", Label::kContext);
  }
  for (const size_t i : chosen) {
    write_question(writer, keys[i]);
    writer.link(writer.add(values[i], Label::kAnswer), {lines[i]});
    writer.add("\n", Label::kAnswer);
    writer.expect({values[i]});
  }
  return writer.take();
}

const RegisterTask kKeyValue({.name = "kv",
                              .summary = "lines of `key: value`; keys are asked, values answered",
                              .options = {"questions"},
                              .fit = Fit::kWhole,
                              .chars_per_token = 2.0,
                              .draw = draw_key_value});

}  // namespace
}  // namespace kv
