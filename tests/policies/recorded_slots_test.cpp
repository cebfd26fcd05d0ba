// A GPU's generation repeats what it recorded, without the host: what fills a slot decides by ops alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tests/support/backends.h"
#include "tests/support/recorded_steps.h"
#include "tests/support/small_slots.h"

namespace kv::ref {
namespace {

using Case = std::tuple<std::string, std::string>;  // backend, what fills the slot

std::string name_of(const testing::TestParamInfo<Case>& test) {
  std::string name = std::get<0>(test.param) + "_" + std::get<1>(test.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class RecordedAdmission : public testing::TestWithParam<Case> {};
class RecordedSelection : public testing::TestWithParam<Case> {};

TEST_P(RecordedAdmission, IsWhatItIsEagerly) {
  const auto& [backend, name] = GetParam();
  if (!try_backend(backend)) GTEST_SKIP() << backend << " is not here";
  expect_recorded_as_eager(backend, {.admission = small_admission(name)});
}

TEST_P(RecordedSelection, IsWhatItIsEagerly) {
  const auto& [backend, name] = GetParam();
  if (!try_backend(backend)) GTEST_SKIP() << backend << " is not here";
  expect_recorded_as_eager(backend, {.selection = small_selection(name)});
  for (const std::string& admission : filling_admissions()) {
    SCOPED_TRACE(admission);
    expect_recorded_as_eager(backend, {.admission = small_admission(admission), .selection = small_selection(name)});
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, RecordedAdmission,
                         testing::Combine(testing::ValuesIn(backend_names()), testing::ValuesIn(filling_admissions())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Runs, RecordedSelection,
                         testing::Combine(testing::ValuesIn(backend_names()), testing::ValuesIn(filling_selections())),
                         name_of);

}  // namespace
}  // namespace kv::ref
