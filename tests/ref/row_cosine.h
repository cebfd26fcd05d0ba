#pragma once

#include <vector>

namespace kv::ref {

double cosine(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace kv::ref
