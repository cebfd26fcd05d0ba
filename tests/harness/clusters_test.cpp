#include "harness/clusters.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

Row row_of(int sample, const std::string& tokens) {
  return {.model = "m", .data = "needle", .policy = "h2o", .sample = sample, .seed = 1, .axes = {tokens}};
}

// The same sample of a longer text is drawn from another book.
TEST(Documents, AreThoseOfASampleAtTheValuesOfTheAxes) {
  RowTable table{.axes = {"tokens"}};
  for (const auto& [tokens, book] : {std::pair("1024", "short"), std::pair("4096", "long")}) {
    Row row = row_of(0, tokens);
    row.metric = kDocumentMetric;
    row.text = book;
    table.rows.push_back(row);
  }
  const Documents documents(table);
  EXPECT_EQ(documents.of(row_of(0, "1024")), "short");
  EXPECT_EQ(documents.of(row_of(0, "4096")), "long");
  EXPECT_EQ(documents.of(row_of(1, "1024")), "");
  EXPECT_EQ(documents.of(row_of(0, "2048")), "");
}

TEST(Clusters, NumberDocumentsInOrderAndWhatHasNoneAlone) {
  Clusters clusters;
  for (const char* document : {"a", "", "b", "a", ""}) clusters.add(document);
  EXPECT_EQ(std::vector<int>(clusters.numbers().begin(), clusters.numbers().end()), (std::vector<int>{0, 1, 2, 0, 3}));
}

}  // namespace
}  // namespace kv
