#include "harness/rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "harness/files.h"
#include "harness/rows_file.h"
#include "kernels/error.h"
#include "sim/io/xz.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

const std::string kHeader =
    "experiment,model,data,policy,device,sample,seed,layer,head,x,metric,value,unit,text,skipped";

Row full_row() {
  return {.experiment = "quickstart",
          .model = "reference",
          .data = "prose",
          .policy = "h2o",
          .device = "cpu",
          .sample = 3,
          .seed = 7,
          .layer = 1,
          .head = 0,
          .x = 0.5,
          .metric = "recall",
          .value = 0.1,
          .unit = "tokens",
          .text = "say \"hi\",\nnow",
          .skipped = "",
          .axes = {"256", "64"}};
}

std::string user_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(const std::string& csv) {
  return user_error([&] { parse_rows(csv, "rows.csv"); });
}

TEST(Rows, AreWrittenAsRfc4180WithLineFeeds) {
  const std::vector<std::string> axes = {"budget", "interval"};
  EXPECT_EQ(format_rows(axes, std::vector<Row>{full_row()}),
            kHeader +
                ",budget,interval\n"
                "quickstart,reference,prose,h2o,cpu,3,7,1,0,0.5,recall,0.1,tokens,\"say \"\"hi\"\",\nnow\",,256,64\n");
}

TEST(Rows, OfWholeCasesLeaveTheirNumbersEmpty) {
  const Row row{.experiment = "e", .policy = "full", .skipped = "too short"};
  EXPECT_EQ(format_rows({}, std::vector<Row>{row}), kHeader + "\ne,,,full,,,,,,,,,,,too short\n");
}

TEST(Rows, SurviveARoundTripByteForByte) {
  RowTable table{.axes = {"budget", "a,b"}, .rows = {}};
  for (const char* text :
       {"", " ", "a,b", "\"", "\"\"", "line\nbreak", "cr\rlf\r\n", "caf\xc3\xa9", "\xe2\x82", "\t", "'"}) {
    Row row = full_row();
    row.text = text;
    row.axes = {text, "x"};
    table.rows.push_back(row);
  }
  const std::string csv = format_rows(table.axes, table.rows);
  EXPECT_EQ(parse_rows(csv, "rows.csv"), table);
  EXPECT_EQ(format_rows(table.axes, parse_rows(csv, "rows.csv").rows), csv);
}

double written_and_read(const Row& row, std::optional<double> Row::*member) {
  const RowTable back = parse_rows(format_rows({}, std::vector<Row>{row}), "rows.csv");
  EXPECT_EQ(back.rows.size(), 1u);
  return (back.rows[0].*member).value();
}

TEST(Rows, KeepCountsAndFloatsAndNineDigitsOfTheRest) {
  for (const double exact : {0.0, -0.0, 2048.0, 1e300, 123456789012345680.0}) {
    const double read = written_and_read({.metric = "bytes", .value = exact}, &Row::value);
    EXPECT_EQ(read, exact);
    EXPECT_EQ(std::signbit(read), std::signbit(exact));
  }
  for (const float value : {0.1F, 1.0F / 3, 1e-40F, 16777215.5F / 4, 3.4028235e38F}) {
    EXPECT_EQ(static_cast<float>(written_and_read({.metric = "m", .value = value}, &Row::value)), value);
  }
  EXPECT_EQ(written_and_read({.metric = "m", .value = 1.0 / 3}, &Row::value), 0.333333333);
  EXPECT_EQ(written_and_read({.metric = "m", .value = -1234.56789012345}, &Row::value), -1234.56789);
  const std::vector<Row> large = {{.metric = "bytes", .value = 10737418240.0 / 3}};
  const std::string text = format_rows({}, large);
  EXPECT_EQ(format_rows({}, parse_rows(text, "rows.csv").rows), text);
}

// Where a curve is evaluated is a name, not a measurement: rows of two runs are matched by it.
TEST(Rows, KeepEveryBitOfAnAbscissa) {
  for (const double x : {0.1, 1.0 / 3, 1e-310}) {
    EXPECT_EQ(written_and_read({.x = x, .metric = "m", .value = 1}, &Row::x), x);
  }
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(2048), "2048");
}

TEST(RowsDeathTest, NeverHoldNan) {
  const Row row{.metric = "m", .value = std::numeric_limits<double>::quiet_NaN()};
  EXPECT_DEATH(format_rows({}, std::vector<Row>{row}), "isfinite");
}

TEST(RowsReader, TakesColumnsInAnyOrderAndUnknownOnesAsAxes) {
  const RowTable table = parse_rows(
      "keep,skipped,text,unit,value,metric,x,head,layer,seed,sample,device,policy,data,model,experiment\r\n"
      "0.5,,,,2,recall,,,,1,0,cpu,h2o,prose,m,e\r\n",
      "rows.csv");
  EXPECT_EQ(table.axes, std::vector<std::string>{"keep"});
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].policy, "h2o");
  EXPECT_EQ(table.rows[0].value, 2.0);
  EXPECT_EQ(table.rows[0].axes, std::vector<std::string>{"0.5"});
}

TEST(RowsReader, NamesFileAndLineOfADefect) {
  const std::string commas(14, ',');
  EXPECT_EQ(error_of(""), "rows.csv:1: empty, expected a header line");
  EXPECT_EQ(error_of("experiment,model\n"), "rows.csv:1: the header lacks the column 'data'");
  EXPECT_EQ(error_of(kHeader + ",keep,keep\n"), "rows.csv:1: column 'keep' appears twice");
  EXPECT_EQ(error_of(kHeader + "\n" + commas + "\na,b\n"), "rows.csv:3: 2 fields, expected 15 as in the header");
  EXPECT_EQ(error_of(kHeader + "\n,,,,,,,,,,m,nan,,,\n"), "rows.csv:2: value 'nan', expected a finite number");
  EXPECT_EQ(error_of(kHeader + "\n,,,,,,,,,,m,1e999,,,\n"), "rows.csv:2: value '1e999', expected a finite number");
  EXPECT_EQ(error_of(kHeader + "\n,,,,,,,1.5,,,m,1,,,\n"), "rows.csv:2: layer '1.5', expected an integer or nothing");
  EXPECT_EQ(error_of(kHeader + "\n,,,,,99999999999999999999,,,,,m,1,,,\n"),
            "rows.csv:2: sample '99999999999999999999', expected an integer or nothing");
}

TEST(RowsReader, CountsTheLinesInsideQuotedFields) {
  EXPECT_EQ(error_of(kHeader + "\n,,,,,,,,,,m,1,,\"a\nb\",\nx,y\n"),
            "rows.csv:4: 2 fields, expected 15 as in the header");
}

// Lines that commas alone divide go past the parser, and must come to what it makes of them where a quote sends them
// there.
TEST(RowsReader, ReadsALineOfCommasAsTheParserDoes) {
  for (const std::string end : {"\n", "\r\n", "\n\n", "\r\n\r\n"}) {
    for (const std::string& text :
         {std::string("x"), std::string(" blank "), std::string("n\0l", 3), std::string("ä")}) {
      const auto table_of = [&](const std::string& field, const std::string& last) {
        const std::string csv =
            fmt::format("{0}{1},,,,,,,,,,m,1,,{2},{1},,,,,,,,,,m,2,,{2},{3}", kHeader, end, field, last);
        return parse_rows(csv, "rows.csv");
      };
      for (const std::string& last : {end, std::string()}) {
        const RowTable plain = table_of(text, last);
        ASSERT_EQ(plain.rows.size(), 2u);
        EXPECT_EQ(plain.rows[1].text, text);
        EXPECT_EQ(plain, table_of('"' + text + '"', last));
      }
    }
  }
}

TEST(RowsReader, KnowsItselfInsideAQuotedFieldThatBeganBehindABareCarriageReturn) {
  const RowTable table =
      parse_rows(kHeader + "\n,,,,,,,,,,m,1,,a,\r,,,,,,,,,,m,2,,\"b\n,,,,\",\n,,,,,,,,,,m,3,,c,\n", "rows.csv");
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].text, "a");
  EXPECT_EQ(table.rows[1].text, "b\n,,,,");
  EXPECT_EQ(table.rows[2].text, "c");
}

TEST(RowsReader, RefusesStrayAndOpenQuotes) {
  EXPECT_NE(error_of(kHeader + "\na\"b" + std::string(14, ',') + "\n").find("rows.csv:2: a quote inside a field"),
            std::string::npos);
  EXPECT_EQ(error_of(kHeader + "\n\"open,,,\n,,\n"), "rows.csv:2: a quoted field is never closed, expected RFC 4180");
}

TEST(RowsReader, KeepsAnErrorOnOneShortLine) {
  const std::string error = error_of(kHeader + "\n,,,,,,,,,,m,\"1\n" + std::string(5000, 'z') + "\",,,\n");
  EXPECT_EQ(error.find('\n'), std::string::npos);
  EXPECT_LT(error.size(), 200u);
}

class RowsFile : public testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) out.push_back(entry.path().filename());
    std::sort(out.begin(), out.end());
    return out;
  }
  std::string reading_error() const {
    return user_error([&] { read_rows(dir_ / "rows.csv"); });
  }
  std::string packing_error() const {
    return user_error([&] { pack_rows(dir_); });
  }

  test::TempFolder folder_;
  const std::filesystem::path& dir_ = folder_.path();
};

TEST_F(RowsFile, IsReplacedWholeAndLeavesNothingBeside) {
  const RowTable table{.axes = {"budget", "interval"}, .rows = {full_row()}};
  write_atomically(dir_ / "rows.csv", "old");
  write_rows_atomically(dir_ / "rows.csv", table.axes, table.rows);
  EXPECT_EQ(read_rows(dir_ / "rows.csv"), table);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(RowsFile, ThatIsNoneCannotBeRead) {
  EXPECT_THROW(read_rows(dir_), UserError);
  EXPECT_THROW(read_rows(dir_ / "none.csv"), UserError);
}

TEST_F(RowsFile, PackedReadsTheSame) {
  const RowTable table{.axes = {"budget", "interval"}, .rows = std::vector<Row>(2000, full_row())};
  const auto path = dir_ / "rows.csv", packed = dir_ / "columns.csv.xz";
  write_rows_atomically(path, table.axes, table.rows);
  const auto size = std::filesystem::file_size(path);
  EXPECT_EQ(stored_rows(path), path);
  pack_rows(dir_);
  EXPECT_EQ(names(), std::vector<std::string>{"columns.csv.xz"});
  EXPECT_LT(std::filesystem::file_size(packed) * 8, size);
  EXPECT_EQ(stored_rows(path), packed);
  EXPECT_EQ(read_rows(path), table);
  const std::string bytes = read_file(packed);
  pack_rows(dir_);
  EXPECT_EQ(read_file(packed), bytes);
}

TEST_F(RowsFile, WinsOverAPackedOneAndReplacesIt) {
  const RowTable old{.axes = {"budget", "interval"}, .rows = {full_row()}}, recent{.axes = {}, .rows = {}};
  write_rows_atomically(dir_ / "rows.csv", old.axes, old.rows);
  pack_rows(dir_);
  write_atomically(dir_ / "rows.csv", format_rows(recent.axes, recent.rows));
  EXPECT_EQ(read_rows(dir_ / "rows.csv"), recent);
  pack_rows(dir_);
  EXPECT_EQ(names(), std::vector<std::string>{"columns.csv.xz"});
  EXPECT_EQ(read_rows(dir_ / "rows.csv"), recent);
  write_rows_atomically(dir_ / "rows.csv", old.axes, old.rows);
  EXPECT_EQ(names(), std::vector<std::string>{"rows.csv"});
}

TEST_F(RowsFile, ThatIsMissingCannotBePacked) {
  EXPECT_EQ(packing_error(), (dir_ / "rows.csv").string() + ": cannot read: No such file or directory");
}

TEST_F(RowsFile, ThatCannotBePackedStays) {
  write_atomically(dir_ / "rows.csv", kHeader + "\n");
  std::filesystem::create_directories(dir_ / "columns.csv.xz" / "in_the_way");
  EXPECT_EQ(packing_error(), "cannot write '" + (dir_ / "columns.csv.xz").string() + "': Is a directory");
  EXPECT_EQ(read_file(dir_ / "rows.csv"), kHeader + "\n");
}

TEST_F(RowsFile, ThatCannotBeReadStaysUnpacked) {
  write_atomically(dir_ / "rows.csv", kHeader + "\na,b\n");
  EXPECT_EQ(packing_error(), (dir_ / "rows.csv").string() + ":2: 2 fields, expected 15 as in the header");
  EXPECT_EQ(names(), std::vector<std::string>{"rows.csv"});
}

TEST_F(RowsFile, UnpackedIsTheSameBytes) {
  Row quoted = full_row();
  quoted.text = "says \"no\",\nand \"\"";
  const std::vector<std::string> axes = {"budget", "interval"};
  write_rows_atomically(dir_ / "rows.csv", axes, std::vector<Row>{full_row(), quoted, Row{.axes = {"", ""}}});
  const std::string bytes = read_file(dir_ / "rows.csv");
  pack_rows(dir_);
  unpack_rows(dir_);
  EXPECT_EQ(names(), std::vector<std::string>{"rows.csv"});
  EXPECT_EQ(read_file(dir_ / "rows.csv"), bytes);
  unpack_rows(dir_);
  EXPECT_EQ(read_file(dir_ / "rows.csv"), bytes);
}

TEST_F(RowsFile, PackedNamesItselfAndTheLineInErrors) {
  const std::string file = (dir_ / "columns.csv.xz").string();
  const Row wrong{.metric = "nll"};
  write_atomically(dir_ / "rows.csv", format_rows({}, std::vector<Row>{wrong, wrong}));
  pack_rows(dir_);
  const std::string whole = read_file(file), columns = unxz(whole, file);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = columns;
    changed.replace(changed.find(from), from.size(), to);
    write_atomically(file, xz(changed));
    return reading_error();
  };
  EXPECT_EQ(refused("value,,", "value,,2x"), file + ":3: value '2x', expected a finite number");
  EXPECT_EQ(refused("value,,", "value,"), file + ": line 12 has 2 fields, expected 3 as the first has");
  EXPECT_EQ(refused("value,,\n", ""), file + ":1: the header lacks the column 'value'");
  EXPECT_EQ(refused("value,,", "value,,\"2"),
            file + ":1: the header lacks the column 'unit'");  // the open quote took it
  write_atomically(file, xz(std::string(1 << 20, '\n')));
  EXPECT_EQ(reading_error(), file + ": more than 1000 columns");
  write_atomically(file, whole.substr(0, whole.size() - 1));
  EXPECT_EQ(reading_error(), file + ": truncated xz, expected more bytes");
}

TEST(TransposeCsv, IsItsOwnInverse) {
  const std::string csv = "a,b\n1,\"x, \"\"y\"\"\n\"\n,\n";
  EXPECT_EQ(transpose_csv(csv, "f"), "a,1,\nb,\"x, \"\"y\"\"\n\",\n");
  EXPECT_EQ(transpose_csv(transpose_csv(csv, "f"), "f"), csv);
  EXPECT_EQ(transpose_csv("", "f"), "");
  EXPECT_EQ(transpose_csv("a,b\n1,2", "f"), "a,1\nb,2\n");
}

// More rows than a thread formats at once.
TEST(WrittenRows, AreWhatTheirTextReadsBackAs) {
  std::vector<Row> rows;
  for (int i = 0; i < 10000; ++i) {
    rows.push_back({.experiment = "e, \"f\"",
                    .sample = i,
                    .x = 1.0 / (i + 1),
                    .metric = i % 3 == 0 ? "total_time" : "nll",
                    .value = i % 5 == 0 ? 1e15 + i : 1.0 / (3 * i + 1),
                    .text = i % 7 == 0 ? " two\nlines" : "",
                    .axes = {std::to_string(i % 4)}});
    if (i % 11 == 0) rows.back().value.reset(), rows.back().skipped = "no";
  }
  const std::vector<Row> given = rows;
  const WrittenRows written = written_rows({"budget"}, std::move(rows));
  EXPECT_EQ(written.csv, format_rows(written.table.axes, given));
  EXPECT_EQ(written.table, parse_rows(written.csv, "rows.csv"));
  EXPECT_NE(written.table.rows, given);  // of nine digits
  std::vector<Row> untimed = given;
  std::erase_if(untimed, [](const Row& row) { return is_timing(row.metric); });
  EXPECT_EQ(format_rows(written.table.axes, given, RowChoice::kUntimed), format_rows(written.table.axes, untimed));
}

}  // namespace
}  // namespace kv
