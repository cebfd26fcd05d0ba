#pragma once

#include <array>

namespace kv {

// A kind of what specs name, as `kvlab list` calls it.
struct Kind {
  const char* one;
  const char* all;
};

inline constexpr std::array<Kind, 9> kKinds = {{{"protocol", "protocols"},
                                                {"policy", "policies"},
                                                {"allocation", "allocations"},
                                                {"admission", "admissions"},
                                                {"selection", "selections"},
                                                {"metric", "metrics"},
                                                {"task", "tasks"},
                                                {"model", "models"},
                                                {"experiment", "experiments"}}};

}  // namespace kv
