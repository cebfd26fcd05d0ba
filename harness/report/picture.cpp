#include "harness/report/picture.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kv {
namespace {

// Thousandths of the size, from ' ' to '~'.
constexpr std::array<int, 95> kWidths = {
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333,  278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667,  611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278,  556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500,  500, 334, 260, 334, 584};
constexpr int kOther = 556;
constexpr double kReserve = 1.06, kBold = 1.07;
constexpr const char* kEllipsis = "\xe2\x80\xa6";

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

void Picture::rectangle(const Box& box, const std::optional<Stroke>& stroke, const std::optional<Color>& fill) {
  add(Shape{.points = {{box.left, box.top}, {box.right, box.top}, {box.right, box.bottom}, {box.left, box.bottom}},
            .closed = true,
            .stroke = stroke,
            .fill = fill});
}

double text_width(std::string_view text, double size, bool bold) {
  int sum = 0;
  for (const char byte : text) {
    if (continues(byte)) continue;
    const int place = static_cast<unsigned char>(byte) - ' ';
    sum += place >= 0 && place < static_cast<int>(kWidths.size()) ? kWidths[static_cast<std::size_t>(place)] : kOther;
  }
  return sum * size / 1000 * kReserve * (bold ? kBold : 1);
}

Box text_box(const Text& text) {
  const double width = text_width(text.text, text.size, text.bold);
  const double start = text.anchor == Anchor::kStart ? 0 : text.anchor == Anchor::kMiddle ? -width / 2 : -width;
  const double angle = text.degrees * std::numbers::pi / 180;
  Box box{text.x, text.y, text.x, text.y};
  bool first = true;
  for (const double along : {start, start + width}) {
    for (const double below : {-text.size / 2, text.size / 2}) {
      const double x = text.x + along * std::cos(angle) + below * std::sin(angle);
      const double y = text.y - along * std::sin(angle) + below * std::cos(angle);
      box = first ? Box{x, y, x, y}
                  : Box{std::min(box.left, x), std::min(box.top, y), std::max(box.right, x), std::max(box.bottom, y)};
      first = false;
    }
  }
  return box;
}

std::string elide(const std::string& text, double width, double size, bool bold) {
  if (text_width(text, size, bold) <= width) return text;
  std::string start = text;
  while (!start.empty() && text_width(start + kEllipsis, size, bold) > width) {
    while (start.size() > 1 && continues(start.back())) start.pop_back();
    start.pop_back();
  }
  return start + kEllipsis;
}

}  // namespace kv
