#include "harness/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "harness/report/escape.h"
#include "harness/report/png.h"

namespace kv {
namespace {

constexpr std::size_t kFewCells = 1024;  // become rectangles, which no viewer blurs; more become one embedded picture

// One decimal, none where it is zero: a tenth of a pixel is less than an eye sees.
std::string number(double value) {
  const long tenths = std::lround(value * 10);
  if (tenths % 10 == 0) return std::to_string(tenths / 10);
  return fmt::format("{}{}.{}", tenths < 0 ? "-" : "", std::abs(tenths / 10), std::abs(tenths % 10));
}

// What a style sheet says of it.
std::string paint(const std::optional<Stroke>& stroke, const std::optional<Color>& fill, bool faint) {
  std::string out = fmt::format("fill:{}", fill ? hex(*fill) : "none");
  if (faint) out += fmt::format(";fill-opacity:{}", kFaint);
  if (!stroke) return out;
  out += fmt::format(";stroke:{}", hex(stroke->color));
  if (stroke->width != 1) out += fmt::format(";stroke-width:{:.3g}", stroke->width);
  std::string dashes;
  for (const double length : stroke->dashes) dashes += (dashes.empty() ? "" : " ") + number(length);
  return dashes.empty() ? out : out + ";stroke-dasharray:" + dashes;
}

// Steps between points that are rounded to tenths, so that errors do not add up.
std::string path(const Shape& shape) {
  std::string out;
  long last_x = 0, last_y = 0;
  for (std::size_t i = 0; i < shape.points.size(); ++i) {
    const long x = std::lround(shape.points[i][0] * 10), y = std::lround(shape.points[i][1] * 10);
    const std::string across = number(static_cast<double>(x - last_x) / 10);
    const std::string down = number(static_cast<double>(y - last_y) / 10);
    if (i == 1) out += 'l';
    if (i == 0) out += 'M';
    if (i > 1 && across.front() != '-') out += ' ';
    out += across;
    if (down.front() != '-') out += ' ';
    out += down;
    last_x = x;
    last_y = y;
  }
  return shape.closed ? out + "z" : out;
}

// Many shapes are painted alike, so that how stands once, in a style sheet.
class Writer {
 public:
  explicit Writer(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string body, definitions;

  std::string style_sheet() const {
    std::string rules;
    for (size_t i = 0; i < paints_.size(); ++i) rules += fmt::format(".{}s{}{{{}}}", prefix_, i, paints_[i]);
    return paints_.empty() ? "" : "<style>" + rules + "</style>\n";
  }

  void operator()(const Shape& shape) {
    body += "<path d=\"" + path(shape) + "\"" + painted(paint(shape.stroke, shape.fill, shape.faint));
    if (shape.clip) body += " clip-path=\"url(#" + clip(*shape.clip) + ")\"";
    body += "/>\n";
  }
  void operator()(const Disc& disc) {
    body += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"{}/>\n", number(disc.x), number(disc.y),
                        number(disc.radius), painted(paint(disc.stroke, disc.fill, false)));
  }
  void operator()(const Text& text) {
    const double below = 0.35 * text.size;  // from the middle of the letters to their base line
    std::string place = fmt::format(" x=\"{}\" y=\"{}\"", number(text.x), number(text.y + below));
    if (text.degrees != 0) {
      place = fmt::format(" y=\"{}\" transform=\"translate({} {})rotate({})\"", number(below), number(text.x),
                          number(text.y), number(-text.degrees));
    }
    body += "<text" + place;
    if (text.size != kTextSize) body += " font-size=\"" + number(text.size) + "\"";
    if (text.anchor != Anchor::kStart) {
      body += std::string(" text-anchor=\"") + (text.anchor == Anchor::kMiddle ? "middle" : "end") + "\"";
    }
    if (text.color != kInk) body += " fill=\"" + hex(text.color) + "\"";
    if (text.bold) body += " font-weight=\"bold\"";
    body += ">" + escape_html(text.text) + "</text>\n";
  }
  void operator()(const Raster& raster) {
    if (raster.cells.size() > kFewCells) {
      body += fmt::format(
          "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
          "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n",
          number(raster.box.left), number(raster.box.top), number(raster.box.width()), number(raster.box.height()),
          base64(to_png(raster)));
      return;
    }
    const double width = raster.box.width() / raster.columns, height = raster.box.height() / raster.rows();
    body += "<g shape-rendering=\"crispEdges\">\n";
    for (std::size_t i = 0; i < raster.cells.size(); ++i) {
      if (raster.cells[i] == Raster::kBlank) continue;
      const auto columns = static_cast<std::size_t>(raster.columns);
      const double x = raster.box.left + width * static_cast<double>(i % columns);
      const auto line = i / columns;
      const double y = raster.box.top + height * static_cast<double>(line);
      // Edges on tenths of a pixel, so that neighbours meet.
      const double left = std::round(x * 10) / 10, top = std::round(y * 10) / 10;
      body += fmt::format(
          "<path d=\"M{} {}h{}v{}h{}z\"{}/>\n", number(left), number(top),
          number(std::round((x + width) * 10) / 10 - left), number(std::round((y + height) * 10) / 10 - top),
          number(left - std::round((x + width) * 10) / 10), painted("fill:" + hex(raster.palette[raster.cells[i]])));
    }
    body += "</g>\n";
  }

 private:
  std::string painted(const std::string& how) {
    const auto found = std::find(paints_.begin(), paints_.end(), how);
    const auto index = found - paints_.begin();
    if (found == paints_.end()) paints_.push_back(how);
    return fmt::format(" class=\"{}s{}\"", prefix_, index);
  }

  std::string clip(const Box& box) {
    const std::string shape = fmt::format("<path d=\"M{} {}h{}v{}h{}z\"/>", number(box.left), number(box.top),
                                          number(box.width()), number(box.height()), number(-box.width()));
    for (std::size_t i = 0; i < clips_.size(); ++i) {
      if (clips_[i] == shape) return fmt::format("{}clip{}", prefix_, i);
    }
    clips_.push_back(shape);
    std::string id = fmt::format("{}clip{}", prefix_, clips_.size() - 1);
    definitions += fmt::format("<clipPath id=\"{}\">{}</clipPath>\n", id, shape);
    return id;
  }

  std::string prefix_;
  std::vector<std::string> clips_, paints_;
};

}  // namespace

std::string hex(const Color& color) { return fmt::format("#{:02x}{:02x}{:02x}", color.red, color.green, color.blue); }

std::string to_svg(const Picture& picture, const std::string& title, const std::string& prefix) {
  Writer writer(prefix);
  for (const PictureItem& item : picture.items) std::visit(writer, item);
  const std::string width = number(std::ceil(picture.width)), height = number(std::ceil(picture.height));
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
             "font-family=\"Helvetica,Arial,'Liberation Sans',sans-serif\" font-size=\"{2}\" fill=\"{3}\" "
             "stroke-linejoin=\"round\">\n<title>{4}</title>\n",
             width, height, number(kTextSize), hex(kInk), escape_html(title)) +
         writer.style_sheet() + writer.definitions +
         fmt::format("<path d=\"M0 0h{}v{}H0z\" fill=\"{}\"/>\n", width, height, hex(kWhite)) + writer.body +
         "</svg>\n";
}

}  // namespace kv
