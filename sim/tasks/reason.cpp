#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "kernels/error.h"
#include "sim/tasks/text.h"
#include "sim/tasks/words.h"

namespace kv {
namespace {

constexpr int kModulus = 1000;
constexpr size_t kBytesAQuantity = 105;   // its definition, its line of the trace and its share of the recaps
constexpr size_t kBytesADefinition = 26;  // its definition alone; the names of few have
constexpr size_t kBytesOfAFew = 21;       // a number half of the time only
constexpr size_t kFewNames = 60;
constexpr size_t kLeastQuantities = 6;
constexpr size_t kMaxQuantities = 10'000;  // about half of the names that there are
constexpr double kMostDefinitions = 0.2;   // of a text that goes round once definitions are a quarter
constexpr size_t kRecapEvery = 16;

// `left op right`, where an operand is an earlier quantity or (index < 0) a number.
struct Operand {
  int index = -1;
  int number = 0;
};

struct Quantity {
  std::string name;
  char op = 0;  // 0: the number of `left` alone
  Operand left;
  Operand right;
  int value = 0;
};

std::vector<std::string> draw_names(size_t count, Random& random) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  while (names.size() < count) {
    std::string name = random.choice(nouns());
    if (count > kFewNames || random.chance(0.5)) name += std::to_string(random.between(10, 100));
    if (seen.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

int evaluate(char op, int left, int right) {
  const int result = op == '+' ? left + right : op == '-' ? left - right : left * right;
  return (result % kModulus + kModulus) % kModulus;
}

// Half of the quantities build on any earlier ones, half on the 25 before them.
void define(std::vector<Quantity>& quantities, size_t i, Random& random) {
  Quantity& quantity = quantities[i];
  const auto number = [](int value) { return Operand{-1, value}; };
  if (i < 3 || random.chance(0.12)) {
    quantity.value = random.between(1, kModulus);
    quantity.left = number(quantity.value);
    return;
  }
  const double kind = random.uniform();
  const int index = static_cast<int>(i);
  const int first = random.chance(0.5) ? 0 : std::max(0, index - 25);
  quantity.left.index = random.between(first, index);
  const int other = random.between(first, index);
  quantity.op = kind < 0.3 ? '+' : kind < 0.5 ? '-' : kind < 0.75 ? '+' : kind < 0.9 ? '-' : '*';
  quantity.right = kind < 0.5   ? number(random.between(1, kModulus))
                   : kind < 0.9 ? Operand{other, 0}
                                : number(random.between(2, 6));
  const auto value = [&](const Operand& operand) {
    return operand.index < 0 ? operand.number : quantities[static_cast<size_t>(operand.index)].value;
  };
  quantity.value = evaluate(quantity.op, value(quantity.left), value(quantity.right));
}

// How many definitions open the text: as many as one round of the trace takes to fill it, or the option's share.
size_t count_quantities(size_t chars, std::optional<double> definitions) {
  if (!definitions) return std::max(kLeastQuantities, chars / kBytesAQuantity);
  if (!(*definitions > 0 && *definitions <= kMostDefinitions))
    throw UserError(
        fmt::format("definitions is {}, expected a share above 0 and at most {}", *definitions, kMostDefinitions));
  const auto bytes = static_cast<size_t>(*definitions * static_cast<double>(chars));
  const size_t few = bytes / kBytesOfAFew;
  const size_t count = few <= kFewNames ? few : std::max(kFewNames, bytes / kBytesADefinition);
  if (count < kLeastQuantities)
    throw UserError(fmt::format("definitions: {} of {} bytes has room for {} definitions, expected at least {}",
                                *definitions, chars, count, kLeastQuantities));
  return count;
}

std::vector<Quantity> draw_quantities(const TaskDraw& draw) {
  Random& random = draw.random;
  const size_t count = count_quantities(draw.chars, draw.options.definitions);
  if (count > kMaxQuantities)
    throw UserError(fmt::format("{} bytes need {} quantities, expected at most {}", draw.chars, count, kMaxQuantities));
  std::vector<Quantity> quantities(count);
  const auto names = draw_names(count, random);
  for (size_t i = 0; i < count; ++i) {
    quantities[i].name = names[i];
    define(quantities, i, random);
  }
  return quantities;
}

// Writes the definitions, then the trace, and remembers where each quantity's definition and values stand. With
// `least_bytes` the trace works the quantities out again, in another order, until the text is that long.
class Reasoning {
 public:
  Reasoning(std::vector<Quantity> quantities, Random& random, size_t least_bytes)
      : quantities_(std::move(quantities)),
        random_(random),
        least_bytes_(least_bytes),
        definitions_(quantities_.size()),
        values_(quantities_.size()) {}

  TaskText write() {
    write_definitions();
    write_question(writer_, fmt::format("What is {}?", quantities_.back().name));
    write_trace();
    const size_t goal = quantities_.size() - 1;
    add(fmt::format("\nTherefore {} = ", quantities_[goal].name));
    add_value(goal);
    add(".\n");
    writer_.expect({fmt::format("Therefore {} = {}.", quantities_[goal].name, quantities_[goal].value)});
    return writer_.take();
  }

  // The trace is given, and values that it has stated are asked for behind it, as its own recaps state them.
  TaskText write_with_recaps(size_t count) {
    write_definitions();
    writer_.add(fmt::format("<|question|>What is {}?<|answer|>", quantities_.back().name), Label::kContext);
    write_trace();
    add("\n");
    std::vector<size_t> stated;
    for (size_t i = 0; i < quantities_.size(); ++i) {
      if (!values_[i].empty()) stated.push_back(i);
    }
    for (const size_t k : random_.sample(stated.size(), std::min(stated.size(), count))) ask_recap(stated[k]);
    return writer_.take();
  }

 private:
  void ask_recap(size_t i) {
    writer_.ask("Recap: ", quantities_[i].name + " = ");
    add_value(i);
    add(".\n");
    writer_.expect({std::to_string(quantities_[i].value)});
  }

  void add(std::string_view text) { writer_.add(text, Label::kAnswer); }

  std::string operand_name(const Operand& operand) const {
    return operand.index < 0 ? std::to_string(operand.number) : quantities_[static_cast<size_t>(operand.index)].name;
  }

  std::string definition(const Quantity& quantity) const {
    if (quantity.op == 0) return operand_name(quantity.left);
    return fmt::format("{} {} {}", operand_name(quantity.left), quantity.op, operand_name(quantity.right));
  }

  void write_definitions() {
    std::vector<size_t> order(quantities_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    random_.shuffle(order);
    writer_.add(fmt::format("Work modulo {}.\n", kModulus), Label::kContext);
    for (const size_t i : order) {
      const Quantity& quantity = quantities_[i];
      definitions_[i] = writer_.add(fmt::format("{} = {}", quantity.name, definition(quantity)), Label::kContext);
      writer_.add("\n", Label::kContext);
    }
  }

  // A value that the trace has stated before: useful is every place that states it.
  void add_value(size_t i) {
    const ByteRange place = writer_.add(std::to_string(quantities_[i].value), Label::kAnswer);
    writer_.link(place, values_[i]);
    values_[i].push_back(place);
  }

  // Quoted from a substitution, which does not name the quantity: no place where later lines would look.
  void add_operand(const Operand& operand) {
    if (operand.index < 0) return add(std::to_string(operand.number));
    const auto i = static_cast<size_t>(operand.index);
    writer_.link(writer_.add(std::to_string(quantities_[i].value), Label::kAnswer), values_[i]);
  }

  void add_given(size_t i) {
    static const std::array<std::string, 3> kOpenings = {"We are given", "Given:", "Start with"};
    const Quantity& quantity = quantities_[i];
    add(fmt::format("{} {} = ", random_.choice(kOpenings), quantity.name));
    const ByteRange place = writer_.add(std::to_string(quantity.value), Label::kAnswer);
    std::vector<ByteRange> sources = {definitions_[i]};
    sources.insert(sources.end(), values_[i].begin(), values_[i].end());
    writer_.link(place, std::move(sources));
    values_[i].push_back(place);
    add(".");
  }

  void add_computed(size_t i) {
    static const std::array<std::string, 4> kOpenings = {"Next,", "Then", "So", "Now"};
    const Quantity& quantity = quantities_[i];
    add(fmt::format("{} {} = ", random_.choice(kOpenings), quantity.name));
    writer_.link(writer_.add(definition(quantity), Label::kAnswer), {definitions_[i]});
    add(" = ");
    add_operand(quantity.left);
    add(fmt::format(" {} ", quantity.op));
    add_operand(quantity.right);
    add(" = ");
    // Follows from the operands just written.
    values_[i].push_back(writer_.add(std::to_string(quantity.value), Label::kAnswer));
    add(".");
  }

  void add_recap(const std::vector<size_t>& resolved) {
    static const std::array<std::string, 3> kOpenings = {"Recap:", "Let me double-check:", "Known so far:"};
    constexpr std::array<size_t, 3> kCounts = {3, 5, 8};
    const size_t drawn = random_.choice(kCounts);
    const auto picked = random_.sample(resolved.size(), std::min(resolved.size(), drawn));
    add("\n" + random_.choice(kOpenings) + " ");
    for (size_t k = 0; k < picked.size(); ++k) {
      const size_t i = resolved[picked[k]];
      add(fmt::format("{}{} = ", k > 0 ? ", " : "", quantities_[i].name));
      add_value(i);
    }
    add(".");
  }

  std::vector<size_t> operands_of(size_t i) const {
    std::vector<size_t> operands;
    for (const Operand& operand : {quantities_[i].left, quantities_[i].right})
      if (operand.index >= 0 && !std::count(operands.begin(), operands.end(), static_cast<size_t>(operand.index)))
        operands.push_back(static_cast<size_t>(operand.index));
    return operands;
  }

  void write_trace() {
    work_out();
    while (writer_.size() < least_bytes_) {
      add("\nLet me go through it again.\n");
      work_out();
    }
  }

  // Whether a round ends with the line of quantity i: half the time at the goal; where the text has a length to reach,
  // there, once the goal has a value.
  bool ends_at(size_t i) {
    if (least_bytes_ > 0) return !values_.back().empty() && writer_.size() >= least_bytes_;
    return i == quantities_.size() - 1 && random_.chance(0.5);
  }

  // One round. Mostly depth first: the quantity that became ready last, sometimes any ready one.
  void work_out() {
    std::vector<size_t> missing(quantities_.size());
    std::vector<std::vector<size_t>> users(quantities_.size());
    std::vector<size_t> ready;
    for (size_t i = 0; i < quantities_.size(); ++i) {
      const auto operands = operands_of(i);
      missing[i] = operands.size();
      if (operands.empty()) ready.push_back(i);
      for (const size_t operand : operands) users[operand].push_back(i);
    }
    std::vector<size_t> resolved;
    while (!ready.empty()) {
      const size_t pick = random_.chance(0.3) ? random_.below(ready.size()) : ready.size() - 1;
      const size_t i = ready[pick];
      ready.erase(ready.begin() + static_cast<ptrdiff_t>(pick));
      if (!resolved.empty()) add("\n");
      resolved.push_back(i);
      if (quantities_[i].op == 0) {
        add_given(i);
      } else {
        add_computed(i);
      }
      for (const size_t user : users[i])
        if (--missing[user] == 0) ready.push_back(user);
      if (ends_at(i)) return;
      if (resolved.size() % kRecapEvery == 0) add_recap(resolved);
    }
  }

  std::vector<Quantity> quantities_;
  Random& random_;
  size_t least_bytes_;
  TextWriter writer_;
  std::vector<ByteRange> definitions_;
  std::vector<std::vector<ByteRange>> values_;  // where the trace says "name = ... value", so far
};

TaskText draw_reason(const TaskDraw& draw) {
  const size_t least_bytes = draw.options.definitions ? draw.chars : 0;
  Reasoning reasoning(draw_quantities(draw), draw.random, least_bytes);
  if (!draw.options.questions) return reasoning.write();
  return reasoning.write_with_recaps(static_cast<size_t>(option_or(draw.options.questions, "questions", 1, 1000, 1)));
}

const RegisterTask kReason({.name = "reason",
                            .summary = "quantities modulo 1000, resolved step by step in a long trace",
                            .options = {"definitions", "questions"},
                            .fit = Fit::kCut,
                            .chars_per_token = 2.4,
                            .metric = AnswerMetric::kSubstringMatch,
                            .draw = draw_reason});

}  // namespace
}  // namespace kv
