#include "sim/io/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/error.h"
#include "sim/io/strict_json.h"

namespace kv {

void refuse_non_finite(std::span<const float> values, int64_t first, const TensorInfo& tensor, std::string_view file) {
  const auto bad = std::find_if_not(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  if (bad == values.end()) return;
  int64_t flat = first + (bad - values.begin());
  std::vector<int64_t> index(tensor.shape.size());
  for (std::size_t i = index.size(); i-- > 0;) {
    index[i] = flat % tensor.shape[i];
    flat /= tensor.shape[i];
  }
  throw UserError(fmt::format("{}: tensor {}: element {} is {}, expected finite numbers", file, in_quotes(tensor.name),
                              shape_text(index), *bad));
}

}  // namespace kv
