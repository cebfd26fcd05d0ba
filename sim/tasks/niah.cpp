#include <fmt/format.h>

#include <array>

#include "sim/tasks/needles.h"
#include "sim/tasks/words.h"

namespace kv {
namespace {

// RULER's eight needle-in-a-haystack types (Hsieh et al. 2024, Table 2 and Appendix B), with texts of our own: noise is
// Hay::kNoise, essays are Hay::kBook.
struct Setting {
  const char* name;
  const char* summary;
  int keys = 1;  // asked for
  int values = 1;
  int distractors = 0;
  Hay hay = Hay::kBook;
  bool uuid_key = false;
  bool uuid_value = false;
  double chars_per_token = 3.5;
};

// The reference model knows hexadecimal digits where RULER has UUIDs.
Form form_of(bool uuid, Form otherwise, Form reference, Wording wording) {
  if (!uuid) return otherwise;
  return wording == Wording::kNeutral ? Form::kUuid : reference;
}

// The neutral wording asks for all keys in one question, as RULER does; the reference model knows questions about
// one key only, and gets several.
TaskText draw_niah(const Setting& setting, const TaskDraw& draw) {
  Random& random = draw.random;
  const Wording wording = draw.options.wording.value_or(Wording::kReference);
  const Form key = form_of(setting.uuid_key, Form::kWords, Form::kHexadecimal, wording);
  const Form value = form_of(setting.uuid_value, Form::kNumber, Form::kHexadecimal16, wording);
  const int distractors = option_or(draw.options.distractors, "distractors", 0, kMostDistractors, setting.distractors);
  Needles needles{.kind = value == Form::kUuid     ? "magic uuid"
                          : value == Form::kNumber ? "magic number"
                                                   : "access code",
                  .facts = {},
                  .hay = {}};
  DistinctForms keys(key);
  const auto draw_fact = [&](int values) {
    Fact fact{keys.draw(random), {}};
    for (int i = 0; i < values; ++i) fact.values.push_back(random_form(value, random));
    return fact;
  };
  for (int i = 0; i < setting.keys; ++i) needles.facts.push_back(draw_fact(setting.values));
  TaskOptions options = draw.options;
  options.hay = options.hay.value_or(setting.hay);
  if (options.hay == Hay::kNeedles) {
    needles.hay.text = draw_needle_hay(draw.chars, needles.kind, [&] { return draw_fact(1); });
  } else {
    needles.hay = draw_hay({draw.chars, random, options, draw.data});
  }
  hide(needles, random);
  // Last, so that their number changes nothing of what is asked for.
  for (int i = 0; i < distractors; ++i) needles.facts.push_back(draw_fact(1));
  hide(needles, random);

  std::vector<size_t> sought;
  for (int i = 0; i < setting.keys; ++i) sought.push_back(static_cast<size_t>(i));
  if (wording == Wording::kNeutral) {
    needles.questions = {sought};
  } else {
    for (const size_t i : sought) needles.questions.push_back({i});
  }
  if (draw.options.depth) place_at(needles, *draw.options.depth);
  return write_needles(needles, wording);
}

RegisterTask niah(const Setting& setting) {
  return RegisterTask({.name = setting.name,
                       .summary = setting.summary,
                       .options = {"distractors", "depth", "hay", "wording"},
                       .fit = Fit::kWhole,
                       .chars_per_token = setting.chars_per_token,
                       .metric = AnswerMetric::kSubstringMatch,
                       .draw = [setting](const TaskDraw& draw) { return draw_niah(setting, draw); }});
}

[[maybe_unused]] const std::array<RegisterTask, 8> kNiah = {
    niah({.name = "niah-single-1",
          .summary = "RULER: one number in repeated sentences",
          .hay = Hay::kNoise,
          .chars_per_token = 4.6}),
    niah({.name = "niah-single-2", .summary = "RULER: one number in books"}),
    niah({.name = "niah-single-3", .summary = "RULER: one UUID in books", .uuid_value = true}),
    niah(
        {.name = "niah-multikey-1", .summary = "RULER: one number and three of other keys in books", .distractors = 3}),
    niah({.name = "niah-multikey-2",
          .summary = "RULER: one number among numbers of other keys",
          .hay = Hay::kNeedles,
          .chars_per_token = 2.9}),
    niah({.name = "niah-multikey-3",
          .summary = "RULER: one UUID among UUIDs of other UUIDs",
          .hay = Hay::kNeedles,
          .uuid_key = true,
          .uuid_value = true,
          .chars_per_token = 1.8}),
    niah({.name = "niah-multivalue", .summary = "RULER: four numbers of one key in books", .values = 4}),
    niah({.name = "niah-multiquery", .summary = "RULER: one number of each of four keys in books", .keys = 4}),
};

}  // namespace
}  // namespace kv
