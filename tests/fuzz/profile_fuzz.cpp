#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/budget/profile_file.h"

// Any bytes give a budget profile that can be looked up, or a one-line UserError.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  try {
    const kv::BudgetProfile profile =
        kv::parse_profile(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    for (const double removed : {0.0, 0.5, 0.8, 1.0}) {
      const auto ratios = profile.at(removed);
      KV_CHECK(ratios.size() == profile.heads());
      for (const float ratio : ratios) KV_CHECK(ratio >= 0 && ratio < 1);
    }
    KV_CHECK(!kv::format_profile(profile).empty());
  } catch (const kv::UserError& error) {
    const std::string text = error.what();
    KV_CHECK(!text.empty() && text.find('\n') == std::string::npos);
  }
  return 0;
}
