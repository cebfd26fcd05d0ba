#include "harness/report/style.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace kv {
namespace {

constexpr Color kBlue = {0x00, 0x72, 0xb2}, kVermilion = {0xd5, 0x5e, 0x00}, kGreen = {0x00, 0x9e, 0x73},
                kPink = {0xcc, 0x79, 0xa7}, kOrange = {0xe6, 0x9f, 0x00}, kSky = {0x56, 0xb4, 0xe9},
                kBlack = {0x00, 0x00, 0x00}, kGrey = {0x7f, 0x7f, 0x7f}, kNavy = {0x00, 0x3f, 0x66},
                kBrown = {0x82, 0x38, 0x00}, kForest = {0x00, 0x5a, 0x40}, kPlum = {0x85, 0x35, 0x66};

constexpr std::array<Color, 12> kColors = {kBlue,  kVermilion, kGreen, kPink,  kOrange, kSky,
                                           kBlack, kGrey,      kNavy,  kBrown, kForest, kPlum};

const std::vector<double>& dashes(std::size_t i) {
  static const std::array<std::vector<double>, 6> kDashes = {
      {{}, {7, 3}, {2, 2.5}, {9, 3, 2, 3}, {4, 2}, {12, 3, 2, 3, 2, 3}}};
  return kDashes[i % kDashes.size()];
}

// A line never changes: plots of other runs are beside it.
struct NamedStyle {
  std::string_view name;
  Color color;
  Mark mark;
  std::size_t dashes;
};
constexpr std::array<NamedStyle, 23> kNamed = {{
    {"full", kBlack, Mark::kCircle, 0},
    {"golden", kOrange, Mark::kStar, 1},
    {"h2o", kBlue, Mark::kCircle, 0},
    {"snapkv", kVermilion, Mark::kSquare, 0},
    {"r-kv", kGreen, Mark::kTriangle, 0},
    {"tova", kPink, Mark::kDiamond, 1},
    {"keydiff", kSky, Mark::kWedge, 0},
    {"observed-attention", kNavy, Mark::kPentagon, 3},
    {"expected-attention", kBrown, Mark::kDiamond, 0},
    {"streaming", kGrey, Mark::kPlus, 1},
    {"random", kGrey, Mark::kCross, 2},
    {"knorm", kPlum, Mark::kTriangle, 3},
    {"lagkv", kPink, Mark::kSquare, 2},
    {"foresight-kv", kForest, Mark::kStar, 0},
    {"wg-kv", kPlum, Mark::kSquare, 0},
    {"retention", kForest, Mark::kWedge, 4},
    {"oracle", kOrange, Mark::kPentagon, 2},
    {"uniform", kGrey, Mark::kSquare, 4},
    {"pyramid", kSky, Mark::kTriangle, 1},
    {"ada", kBlue, Mark::kDiamond, 3},
    {"lu-kv", kVermilion, Mark::kCircle, 0},
    {"optimal", kBlack, Mark::kStar, 2},
    {"global", kGreen, Mark::kPentagon, 4},
}};

// FNV-1a, the same on every machine and in every version.
std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (const char byte : text) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return value;
}

using Points = std::vector<std::array<double, 2>>;

// Corners at `radii` in turn, the first straight up (down: turned by half a turn).
Points corners(double x, double y, int count, std::array<double, 2> radii, double turn) {
  Points points;
  for (int i = 0; i < count; ++i) {
    const double angle = 2 * std::numbers::pi * (i / static_cast<double>(count) + turn) - std::numbers::pi / 2;
    const double radius = radii[static_cast<std::size_t>(i % 2)];
    points.push_back({x + radius * std::cos(angle), y + radius * std::sin(angle)});
  }
  return points;
}

Points plus_points(double x, double y, double radius, double turn) {
  constexpr double kThin = 0.36;
  constexpr std::array<std::array<double, 2>, 12> kCorners = {{{-kThin, -1},
                                                               {kThin, -1},
                                                               {kThin, -kThin},
                                                               {1, -kThin},
                                                               {1, kThin},
                                                               {kThin, kThin},
                                                               {kThin, 1},
                                                               {-kThin, 1},
                                                               {-kThin, kThin},
                                                               {-1, kThin},
                                                               {-1, -kThin},
                                                               {-kThin, -kThin}}};
  Points points;
  for (const auto& [across, down] : kCorners) {
    points.push_back({x + radius * (across * std::cos(turn) - down * std::sin(turn)),
                      y + radius * (across * std::sin(turn) + down * std::cos(turn))});
  }
  return points;
}

Points mark_points(Mark mark, double x, double y, double r) {
  switch (mark) {
    case Mark::kSquare:
      return corners(x, y, 4, {1.25 * r, 1.25 * r}, 0.125);
    case Mark::kTriangle:
      return corners(x, y + 0.15 * r, 3, {1.3 * r, 1.3 * r}, 0);
    case Mark::kDiamond:
      return corners(x, y, 4, {1.3 * r, 1.3 * r}, 0);
    case Mark::kWedge:
      return corners(x, y - 0.15 * r, 3, {1.3 * r, 1.3 * r}, 0.5);
    case Mark::kPentagon:
      return corners(x, y, 5, {1.15 * r, 1.15 * r}, 0);
    case Mark::kPlus:
      return plus_points(x, y, 1.1 * r, 0);
    case Mark::kCross:
      return plus_points(x, y, 1.2 * r, std::numbers::pi / 4);
    case Mark::kStar:
      return corners(x, y, 10, {1.5 * r, 0.65 * r}, 0);
    case Mark::kCircle:
      break;
  }
  return {};
}

}  // namespace

Style style_of_name(const std::string& name) {
  for (const NamedStyle& known : kNamed) {
    if (known.name == name) return {.color = known.color, .mark = known.mark, .dashes = dashes(known.dashes)};
  }
  const std::uint64_t bits = hash(name);
  return {.color = kColors[bits % kColors.size()],
          .mark = static_cast<Mark>(bits / kColors.size() % kMarks),
          .hollow = true,
          .dashes = dashes(bits / (kColors.size() * kMarks) % 6)};
}

Style SeriesStyles::of(const Key& series) {
  const auto named = std::find_if(columns_.begin(), columns_.end(), [](const std::string& column) {
    return column == "policy" || column == "allocation";
  });
  const auto place = std::find(seen_.begin(), seen_.end(), series);
  const auto number = static_cast<std::size_t>(place - seen_.begin());
  if (place == seen_.end()) seen_.push_back(series);
  if (named == columns_.end()) {
    return {.color = kColors[number % kColors.size()],
            .mark = static_cast<Mark>((number + number / kMarks) % kMarks),
            .hollow = number >= kMarks,
            .dashes = dashes(number)};
  }
  const auto column = static_cast<std::size_t>(named - columns_.begin());
  Style style = style_of_name(series[column]);
  const auto same_name =
      static_cast<std::size_t>(std::count_if(seen_.begin(), seen_.begin() + static_cast<std::ptrdiff_t>(number),
                                             [&](const Key& other) { return other[column] == series[column]; }));
  if (same_name == 0) return style;
  style.dashes = dashes(same_name);
  style.hollow = same_name % 2 == 1;
  return style;
}

void draw_mark(Picture& picture, double x, double y, const Style& style, double size) {
  const std::optional<Stroke> edge =
      Stroke{.color = style.hollow ? style.color : kWhite, .width = style.hollow ? 1.5 : 0.6};
  const std::optional<Color> fill = style.hollow ? kWhite : style.color;
  const double radius = size / 2;
  if (style.mark == Mark::kCircle) {
    picture.add(Disc{.x = x, .y = y, .radius = radius, .stroke = edge, .fill = fill});
  } else {
    picture.add(Shape{.points = mark_points(style.mark, x, y, radius), .closed = true, .stroke = edge, .fill = fill});
  }
}

Stroke line_stroke(const Style& style) { return {.color = style.color, .width = 1.7, .dashes = style.dashes}; }

std::vector<Color> matrix_palette(int steps) {
  constexpr std::array<Color, 10> kStops = {{{0x44, 0x01, 0x54},
                                             {0x48, 0x28, 0x78},
                                             {0x3e, 0x49, 0x89},
                                             {0x31, 0x68, 0x8e},
                                             {0x26, 0x82, 0x8e},
                                             {0x1f, 0x9e, 0x89},
                                             {0x35, 0xb7, 0x79},
                                             {0x6e, 0xce, 0x58},
                                             {0xb5, 0xde, 0x2b},
                                             {0xfd, 0xe7, 0x25}}};
  std::vector<Color> out;
  for (int i = 0; i < steps; ++i) {
    const double place = static_cast<double>(i) / (steps - 1) * static_cast<double>(kStops.size() - 1);
    const std::size_t below = std::min(static_cast<std::size_t>(place), kStops.size() - 2);
    const double share = place - static_cast<double>(below);
    const auto mix = [share](std::uint8_t a, std::uint8_t b) {
      return static_cast<std::uint8_t>(std::lround(a + share * (b - a)));
    };
    const Color &a = kStops[below], &b = kStops[below + 1];
    out.push_back({mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue)});
  }
  return out;
}

}  // namespace kv
