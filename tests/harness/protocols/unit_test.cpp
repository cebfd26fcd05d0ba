#include "harness/protocols/unit.h"

#include <gtest/gtest.h>

#include <limits>

namespace kv {
namespace {

TEST(UnitRows, AValueThatIsNotFiniteIsAReason) {
  const Row blank{.experiment = "e", .policy = "p", .text = "oracle"};
  std::vector<Row> rows;
  add_row(rows, blank, "loss", 2.5, "nats");
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()}) {
    add_row(rows, blank, "loss", value, "nats");
    EXPECT_EQ(rows.back().skipped, "not a finite number");
    EXPECT_FALSE(rows.back().value.has_value());
    EXPECT_EQ(rows.back().text, "");
    EXPECT_EQ(rows.back().metric, "loss");
  }
  EXPECT_EQ(rows[0],
            (Row{.experiment = "e", .policy = "p", .metric = "loss", .value = 2.5, .unit = "nats", .text = "oracle"}));
}

}  // namespace
}  // namespace kv
