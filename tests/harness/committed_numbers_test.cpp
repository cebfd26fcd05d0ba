// The numbers of README.md and results/README.md are those of the committed rows. Suites named *Slow* are left out
// where every access is checked: these read all results.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

#include "harness/models_page.h"
#include "harness/report/table.h"
#include "harness/report/table_grid.h"
#include "harness/results_index.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "harness/spec/spec_reader.h"
#include "harness/spec/yaml_document.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

fs::path result(const std::string& name) { return ref::source_path("results/" + name); }

// A value of the result's spec: axes.budget, data.reason.tokens (the entry of that name or task).
std::string key_of(const std::string& name, const std::string& path) {
  const YamlDocument document(test::read_file(result(name) / "spec.yaml"), "spec.yaml");
  YAML::Node node = YAML::Clone(document.root());
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) {
    YAML::Node next;
    if (node.IsSequence()) {
      for (const auto& item : node) {
        const YAML::Node label = item["name"] ? item["name"] : item["task"];
        if (label && label.Scalar() == part) next.reset(item);
      }
    } else if (node.IsMap()) {
      next.reset(node[part]);
    }
    node.reset(next);
  }
  return node.IsScalar() ? node.Scalar() : "";
}

// A cell of the result's table, as the table prints it; `keys`: column=value.
std::string cell_of(const std::string& name, const std::string& table_name,
                    const std::map<std::string, std::string>& keys) {
  const Spec spec = load_spec(result(name) / "spec.yaml");
  const RowTable rows = read_rows(result(name) / "rows.csv");
  for (const TablePlan& table : spec.report.tables) {
    if (table.name != table_name) continue;
    const auto key = [&](const std::vector<std::string>& columns) {
      Key values;
      for (const std::string& column : columns) values.push_back(keys.contains(column) ? keys.at(column) : "");
      return values;
    };
    const CellGrid grid = make_cell_grid(table, nullptr, rows);
    const Cell* cell = find_cell(grid, key(table.rows), key(table.columns));
    return cell && cell->estimate ? format_number(cell->estimate->value, table.digits) : "no such cell";
  }
  return "no such table";
}

// How many of the papers' items the index counts as what begins with that word.
std::string items_of(const std::string& outcome) {
  const std::string index = test::read_file(result("README.md"));
  const std::regex pattern(outcome == "all" ? R"((\d+) items: )" : R"((\d+) )" + outcome + "[^,.]*[,.]");
  std::smatch found;
  return std::regex_search(index, found, pattern) ? found[1].str() : "0";
}

// What a marker <!--KIND ARGUMENTS--> says has to follow it.
std::string number_of(const std::string& marker) {
  std::istringstream words(marker);
  std::string kind, name, what;
  words >> kind >> name >> what;
  if (kind == "key") return key_of(name, what);
  if (kind == "items") return items_of(name);
  if (kind != "cell") return "no such kind";
  std::map<std::string, std::string> keys;
  for (std::string pair; words >> pair;) keys[pair.substr(0, pair.find('='))] = pair.substr(pair.find('=') + 1);
  return cell_of(name, what, keys);
}

// README.md's prose: without code, and without what links lead to.
std::string readme_prose() {
  std::istringstream lines(test::read_file(ref::source_path("README.md")));
  std::string prose;
  bool code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      code = !code;
    } else if (!code) {
      prose += line + "\n";
    }
  }
  prose = std::regex_replace(prose, std::regex("`[^`\n]*`"), "");
  return std::regex_replace(prose, std::regex(R"(\]\([^)]*\))"), "]");
}

const std::regex& marked() {
  static const std::regex kPattern("<!--([a-z][^>]*)-->([^<]*)<!--/-->");
  return kPattern;
}

TEST(CommittedNumbersSlow, TheIndexIsAFunctionOfTheResults) {
  EXPECT_EQ(test::read_file(result("README.md")), index_text(result(""), std::filesystem::exists(result("models.md"))))
      << "kvlab report --index results writes it again";
}

TEST(CommittedNumbersSlow, ThePageOfBothModelsIsAFunctionOfTheResults) {
  const std::filesystem::path page = result("models.md");
  EXPECT_EQ(std::filesystem::exists(page) ? test::read_file(page) : "", models_page(result("")))
      << "kvlab report --index results writes it again";
}

TEST(CommittedNumbersSlow, MarkedNumbersOfTheReadmeAreThoseOfTheRows) {
  const std::string prose = readme_prose();
  int count = 0;
  for (std::sregex_iterator found(prose.begin(), prose.end(), marked()), end; found != end; ++found, ++count) {
    EXPECT_EQ((*found)[2].str(), number_of((*found)[1].str())) << (*found)[1].str();
  }
  EXPECT_GE(count, 8);
}

// A measured number without a marker could say anything. What may stand without: names, and numbers that are no
// results, in the words that they stand in.
TEST(CommittedNumbers, NoOtherNumberStandsInTheReadme) {
  std::string prose = std::regex_replace(readme_prose(), marked(), "");
  for (const char* known : {"a budget of 1024 tokens", ": 1 means no harm", "Debian 12", "CUDA 13",
                            "- 001: ", "- 002: ", "- 003: ", "- 004: ", "Qwen2.5", "Apache-2.0"}) {
    const size_t at = prose.find(known);
    ASSERT_NE(at, prose.npos) << known;
    prose.erase(at, std::string(known).size());
  }
  const std::regex number(R"((^|[^A-Za-z0-9_.-])([0-9][0-9.,]*))");
  for (std::sregex_iterator found(prose.begin(), prose.end(), number), end; found != end; ++found) {
    ADD_FAILURE() << (*found)[2].str() << " in: " << prose.substr(static_cast<size_t>(found->position()), 60);
  }
}

}  // namespace
}  // namespace kv
