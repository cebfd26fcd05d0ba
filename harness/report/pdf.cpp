#include "harness/report/pdf.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <utility>

namespace kv {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kSpelt = {{{"\xe2\x80\x93", "\x96"},
                                                                                   {"\xe2\x80\x94", "\x97"},
                                                                                   {"\xe2\x80\xa6", "\x85"},
                                                                                   {"\xe2\x80\xa0", "\x86"},
                                                                                   {"\xe2\x88\x92", "-"},
                                                                                   {"\xe2\x89\xa4", "<="},
                                                                                   {"\xe2\x89\xa5", ">="},
                                                                                   {"\xcf\x84", "tau"},
                                                                                   {"\xce\xb5", "epsilon"},
                                                                                   {"\xce\xb1", "alpha"},
                                                                                   {"\xce\xb2", "beta"},
                                                                                   {"\xce\xbc", "\xb5"}}};

// A PDF string in Windows-1252.
std::string quote(std::string_view text) {
  std::string out = "(";
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    length = std::min(length, text.size());
    std::string byte = "?";
    if (first < 0x80) byte = std::string(1, text.front());
    if (length == 2 && (first == 0xc2 || first == 0xc3)) {  // U+00A0 to U+00FF stand alike in Windows-1252
      byte = std::string(1, static_cast<char>((first & 3) << 6 | (static_cast<unsigned char>(text[1]) & 0x3f)));
    }
    for (const auto& [character, spelling] : kSpelt) {
      if (text.starts_with(character)) byte = spelling;
    }
    if (byte == "(" || byte == ")" || byte == "\\") out += '\\';
    out += static_cast<unsigned char>(byte.front()) < 0x20 ? "?" : byte;
    text.remove_prefix(length);
  }
  return out + ")";
}

std::string color(const Color& color, const char* operation) {
  return fmt::format("{:.3g} {:.3g} {:.3g} {}\n", color.red / 255.0, color.green / 255.0, color.blue / 255.0,
                     operation);
}

class Writer {
 public:
  explicit Writer(double height) : height_(height) {}
  std::string content;
  std::vector<std::string> images;

  void operator()(const Shape& shape) {
    content += "q\n";
    if (shape.clip) {
      content += fmt::format("{:.2f} {:.2f} {:.2f} {:.2f} re W n\n", shape.clip->left, height_ - shape.clip->bottom,
                             shape.clip->width(), shape.clip->height());
    }
    if (shape.faint) content += "/Faint gs\n";
    prepare(shape.stroke, shape.fill);
    for (std::size_t i = 0; i < shape.points.size(); ++i) {
      content +=
          fmt::format("{:.2f} {:.2f} {}\n", shape.points[i][0], height_ - shape.points[i][1], i == 0 ? "m" : "l");
    }
    if (shape.closed) content += "h ";
    finish(shape.stroke, shape.fill);
  }
  void operator()(const Disc& disc) {
    content += "q\n";
    prepare(disc.stroke, disc.fill);
    const double x = disc.x, y = height_ - disc.y, r = disc.radius, k = 0.5523 * r;  // four Bézier quarters
    content += fmt::format("{:.2f} {:.2f} m\n", x + r, y);
    const auto quarter = [&](double x1, double y1, double x2, double y2, double x3, double y3) {
      content += fmt::format("{:.2f} {:.2f} {:.2f} {:.2f} {:.2f} {:.2f} c\n", x1, y1, x2, y2, x3, y3);
    };
    quarter(x + r, y + k, x + k, y + r, x, y + r);
    quarter(x - k, y + r, x - r, y + k, x - r, y);
    quarter(x - r, y - k, x - k, y - r, x, y - r);
    quarter(x + k, y - r, x + r, y - k, x + r, y);
    content += "h ";
    finish(disc.stroke, disc.fill);
  }
  void operator()(const Text& text) {
    constexpr double kReserve = 1.06;  // of text_width()
    const double width = text_width(text.text, text.size, text.bold) / kReserve;
    const double start = text.anchor == Anchor::kStart ? 0 : text.anchor == Anchor::kMiddle ? -width / 2 : -width;
    const double angle = text.degrees * std::numbers::pi / 180, below = 0.35 * text.size;
    content += "BT " + color(text.color, "rg") +
               fmt::format("/{} {:.2f} Tf {:.4f} {:.4f} {:.4f} {:.4f} {:.2f} {:.2f} Tm ", text.bold ? "Bold" : "Plain",
                           text.size, std::cos(angle), std::sin(angle), -std::sin(angle), std::cos(angle),
                           text.x + start * std::cos(angle) + below * std::sin(angle),
                           height_ - text.y + start * std::sin(angle) - below * std::cos(angle)) +
               quote(text.text) + " Tj ET\n";
  }
  void operator()(const Raster& raster) {
    content += fmt::format("q {:.2f} 0 0 {:.2f} {:.2f} {:.2f} cm /Image{} Do Q\n", raster.box.width(),
                           raster.box.height(), raster.box.left, height_ - raster.box.bottom, images.size());
    std::string palette;
    for (const Color& entry : raster.palette) {
      palette += fmt::format("{:02x}{:02x}{:02x}", entry.red, entry.green, entry.blue);
    }
    const std::size_t blank = raster.palette.size();
    std::string pixels;
    for (const std::uint8_t cell : raster.cells) pixels += static_cast<char>(cell == Raster::kBlank ? blank : cell);
    images.push_back(
        fmt::format("<< /Type /XObject /Subtype /Image /Width {} /Height {} /BitsPerComponent 8 /ColorSpace "
                    "[/Indexed /DeviceRGB {} <{}ffffff>] /Mask [{} {}] /Length {} >>\nstream\n",
                    raster.columns, raster.rows(), blank, palette, blank, blank, pixels.size()) +
        pixels + "\nendstream");
  }

 private:
  void prepare(const std::optional<Stroke>& stroke, const std::optional<Color>& fill) {
    if (fill) content += color(*fill, "rg");
    if (!stroke) return;
    content += color(stroke->color, "RG") + fmt::format("{:.2f} w 1 j [", stroke->width);
    for (const double length : stroke->dashes) content += fmt::format("{:.2f} ", length);
    content += "] 0 d\n";
  }
  void finish(const std::optional<Stroke>& stroke, const std::optional<Color>& fill) {
    content += std::string(stroke && fill ? "B" : stroke ? "S" : fill ? "f" : "n") + " Q\n";
  }

  double height_;
};

}  // namespace

std::string to_pdf(const Picture& picture, const std::string& title) {
  constexpr double kPoints = 0.75;  // a pixel
  Writer writer(picture.height);
  for (const PictureItem& item : picture.items) std::visit(writer, item);
  const std::string content = fmt::format("{0} 0 0 {0} 0 0 cm\n", kPoints) + writer.content;
  constexpr std::size_t kFirstImage = 8;
  std::string names;
  for (std::size_t i = 0; i < writer.images.size(); ++i) names += fmt::format("/Image{} {} 0 R ", i, kFirstImage + i);
  constexpr const char* kFont = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica{} /Encoding /WinAnsiEncoding >>";
  std::vector<std::string> objects = {
      "<< /Type /Catalog /Pages 2 0 R >>",
      "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
      fmt::format("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {:.2f} {:.2f}] /Contents 4 0 R /Resources << /Font << "
                  "/Plain 5 0 R /Bold 6 0 R >> /ExtGState << /Faint << /ca {} >> >> /XObject << {}>> >> >>",
                  picture.width * kPoints, picture.height * kPoints, kFaint, names),
      fmt::format("<< /Length {} >>\nstream\n", content.size()) + content + "\nendstream",
      fmt::format(fmt::runtime(kFont), ""),
      fmt::format(fmt::runtime(kFont), "-Bold"),
      "<< /Title " + quote(title) + " >>"};
  objects.insert(objects.end(), writer.images.begin(), writer.images.end());
  std::string out = "%PDF-1.4\n%\xe2\xe3\xcf\xd3\n";
  std::string places = fmt::format("xref\n0 {}\n0000000000 65535 f \n", objects.size() + 1);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    places += fmt::format("{:010} 00000 n \n", out.size());
    out += fmt::format("{} 0 obj\n", i + 1) + objects[i] + "\nendobj\n";
  }
  const std::size_t start = out.size();
  return out + places +
         fmt::format("trailer\n<< /Size {} /Root 1 0 R /Info 7 0 R >>\nstartxref\n{}\n%%EOF\n", objects.size() + 1,
                     start);
}

}  // namespace kv
