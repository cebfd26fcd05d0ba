#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kv {

// What a plot consists of before it becomes SVG or PDF. Coordinates are pixels from the top left, y downwards.

struct Color {
  std::uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Color&) const = default;
};

inline constexpr Color kInk = {0x20, 0x20, 0x20}, kQuiet = {0x60, 0x60, 0x60}, kGrid = {0xdd, 0xdd, 0xdd},
                       kWhite = {0xff, 0xff, 0xff};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  double width() const { return right - left; }
  double height() const { return bottom - top; }
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
  bool holds(const Box& other) const {
    return left <= other.left && top <= other.top && right >= other.right && bottom >= other.bottom;
  }
};

struct Stroke {
  Color color = kInk;
  double width = 1;
  std::vector<double> dashes{};  // lengths of dash, gap, dash ...; empty: solid
};

inline constexpr double kFaint = 0.16;  // opacity of a band

struct Shape {
  std::vector<std::array<double, 2>> points{};
  bool closed = false;
  std::optional<Stroke> stroke{};
  std::optional<Color> fill{};
  bool faint = false;         // the fill, at kFaint
  std::optional<Box> clip{};  // what lies outside is not drawn
};

struct Disc {
  double x = 0, y = 0, radius = 0;
  std::optional<Stroke> stroke{};
  std::optional<Color> fill{};
};

enum class Anchor { kStart, kMiddle, kEnd };

inline constexpr double kTextSize = 12, kSmallText = 11;

// One line; y is the middle of its letters, x what the anchor says. Turned counter-clockwise about that point.
struct Text {
  double x = 0, y = 0;
  std::string text{};
  Anchor anchor = Anchor::kStart;
  double size = kTextSize;
  double degrees = 0;
  Color color = kInk;
  bool bold = false;
};

// Cells of equal size, row by row from the top left, each the index of its colour.
struct Raster {
  static constexpr std::uint8_t kBlank = 255;
  Box box{};
  int columns = 0;
  std::vector<std::uint8_t> cells{};
  std::vector<Color> palette{};
  int rows() const { return columns == 0 ? 0 : static_cast<int>(cells.size()) / columns; }
};

using PictureItem = std::variant<Shape, Disc, Text, Raster>;

struct Picture {
  double width = 0, height = 0;
  std::vector<PictureItem> items{};  // later ones cover earlier ones

  void add(PictureItem item) { items.push_back(std::move(item)); }
  void line(double x0, double y0, double x1, double y1, const Stroke& stroke) {
    add(Shape{.points = {{x0, y0}, {x1, y1}}, .stroke = stroke});
  }
  void rectangle(const Box& box, const std::optional<Stroke>& stroke, const std::optional<Color>& fill);
};

// Width in pixels in Helvetica (Adobe's metrics, which Arial and Liberation Sans share), plus a reserve for fonts that
// run a little wider. Characters beyond ASCII count as a digit.
double text_width(std::string_view text, double size, bool bold = false);
// The upright box around a text, turned or not.
Box text_box(const Text& text);
// The text, or as much of its start as fits the width, and an ellipsis.
std::string elide(const std::string& text, double width, double size, bool bold = false);

}  // namespace kv
