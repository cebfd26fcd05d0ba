#include "harness/report/frame.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness/report/plot_parts.h"

namespace kv {
namespace {

constexpr double kTitle = 20, kGapX = 18, kGapY = 12, kAxisLabel = 20, kEdge = 8;
constexpr double kLegendLine = 20, kLegendMark = 36;
constexpr Stroke kGridStroke = {.color = kGrid, .width = 0.8};
constexpr Stroke kBorder = {.color = {0x80, 0x80, 0x80}, .width = 1};

int columns_for(int panels) { return panels <= 3 ? panels : panels == 4 ? 2 : panels <= 9 ? 3 : 4; }

Key head_of(const Key& key) { return Key(key.begin(), key.end() - 1); }

}  // namespace

PanelGrid arrange_panels(const std::vector<Key>& facets, const std::vector<std::string>& columns,
                         const Labels& labels) {
  const int count = static_cast<int>(facets.size());
  PanelGrid grid{.columns = std::max(1, columns_for(count))};
  grid.rows = (count + grid.columns - 1) / grid.columns;
  grid.places.resize(facets.size());
  std::iota(grid.places.begin(), grid.places.end(), 0);
  if (columns.size() < 2 || facets.size() < 2) return grid;
  std::vector<Key> heads;
  std::vector<std::string> tails;
  for (const Key& facet : facets) {
    const Key head = head_of(facet);
    if (std::find(heads.begin(), heads.end(), head) == heads.end()) heads.push_back(head);
    if (std::find(tails.begin(), tails.end(), facet.back()) == tails.end()) tails.push_back(facet.back());
  }
  if (heads.size() * tails.size() > 2 * facets.size() || heads.size() < 2 || tails.size() < 2) return grid;
  tails = sorted_labels(std::move(tails));
  grid = {.columns = static_cast<int>(tails.size()), .rows = static_cast<int>(heads.size()), .crossed = true};
  for (const std::string& tail : tails) grid.column_titles.push_back(label_of(labels, columns.back(), tail));
  const std::vector<std::string> first(columns.begin(), columns.end() - 1);
  for (const Key& head : heads) grid.row_titles.push_back(label_of(labels, first, head));
  for (const Key& facet : facets) {
    const auto row = std::find(heads.begin(), heads.end(), head_of(facet)) - heads.begin();
    const auto column = std::find(tails.begin(), tails.end(), facet.back()) - tails.begin();
    grid.places.push_back(static_cast<int>(row * grid.columns + column));
  }
  return grid;
}

Frame::Frame(Picture& picture, FrameOptions options) : picture_(picture), options_(std::move(options)) {
  const PanelGrid& grid = options_.grid;
  if (!options_.y_label.empty()) options_.left += kAxisLabel;
  const bool titled = std::any_of(options_.titles.begin(), options_.titles.end(),
                                  [](const std::string& title) { return !title.empty(); });
  row_pitch_ = options_.panel_height + kGapY + (grid.crossed || titled ? kTitle : 0);
  top_ = kEdge + (grid.crossed ? 2 * kTitle : titled ? kTitle : 0);
  picture_.width = options_.left + grid.columns * options_.panel_width + (grid.columns - 1) * kGapX + options_.right;
  picture_.height = all().bottom + options_.ticks_below + (options_.x_label.empty() ? 0 : kAxisLabel) + kEdge;
  draw_titles();
  draw_labels();
}

Box Frame::cell(int place) const {
  const int column = place % options_.grid.columns, row = place / options_.grid.columns;
  const double left = options_.left + column * (options_.panel_width + kGapX), top = top_ + row * row_pitch_;
  return {left, top, left + options_.panel_width, top + options_.panel_height};
}

Box Frame::all() const {
  const Box last = cell(options_.grid.columns * options_.grid.rows - 1);
  return {options_.left, top_, last.right, last.bottom};
}

bool Frame::lowest(std::size_t i) const {
  const int place = options_.grid.places[i];
  return std::none_of(options_.grid.places.begin(), options_.grid.places.end(), [&](int other) {
    return other > place && other % options_.grid.columns == place % options_.grid.columns;
  });
}

void Frame::draw_titles() {
  const PanelGrid& grid = options_.grid;
  const auto title = [&](const std::string& text, double x, double y, double room, Anchor anchor) {
    picture_.add(Text{.x = x, .y = y, .text = elide(text, room, kTextSize, true), .anchor = anchor, .bold = true});
  };
  if (!grid.crossed) {
    for (std::size_t i = 0; i < options_.titles.size(); ++i) {
      const Box box = panel(i);
      if (!options_.titles[i].empty()) {
        title(options_.titles[i], (box.left + box.right) / 2, box.top - 10, box.width() + kGapX - 4, Anchor::kMiddle);
      }
    }
    return;
  }
  for (int column = 0; column < grid.columns; ++column) {
    const Box box = cell(column);
    title(grid.column_titles[static_cast<std::size_t>(column)], (box.left + box.right) / 2, kEdge + 8,
          box.width() + kGapX - 4, Anchor::kMiddle);
  }
  for (int row = 0; row < grid.rows; ++row) {
    const Box box = cell(row * grid.columns);
    title(grid.row_titles[static_cast<std::size_t>(row)], box.left, box.top - 10, all().width(), Anchor::kStart);
  }
}

void Frame::draw_labels() {
  const Box box = all();
  if (!options_.x_label.empty()) {
    picture_.add(Text{.x = (box.left + box.right) / 2,
                      .y = box.bottom + options_.ticks_below + kAxisLabel / 2,
                      .text = elide(options_.x_label, picture_.width - 2 * kEdge, kTextSize),
                      .anchor = Anchor::kMiddle});
    // A label wider than the panels would leave the picture on one side.
    Text& label = std::get<Text>(picture_.items.back());
    const double half = text_width(label.text, kTextSize) / 2 + 2;
    label.x =
        std::clamp(label.x, std::min(half, picture_.width / 2), std::max(picture_.width - half, picture_.width / 2));
  }
  if (!options_.y_label.empty()) {
    picture_.add(Text{.x = kEdge + 6,
                      .y = (box.top + box.bottom) / 2,
                      .text = elide(options_.y_label, picture_.height - 2 * kEdge, kTextSize),
                      .anchor = Anchor::kMiddle,
                      .degrees = 90});
    Text& label = std::get<Text>(picture_.items.back());
    const double half = text_width(label.text, kTextSize) / 2 + 2;
    label.y =
        std::clamp(label.y, std::min(half, picture_.height / 2), std::max(picture_.height - half, picture_.height / 2));
  }
}

void Frame::draw_x_axis(std::size_t i, const PlotAxis& axis, const std::vector<Tick>& ticks, GridLines lines) {
  const Box box = panel(i);
  double label_end = -1e9;
  for (const Tick& tick : ticks) {
    const double x = axis.at(tick.value);
    if (lines == GridLines::kYes) picture_.line(x, box.top, x, box.bottom, kGridStroke);
    const double half = text_width(tick.text, kSmallText) / 2;
    const bool outside = x - half < box.left - kGapX / 2 + 1 || x + half > box.right + kGapX / 2 - 1;
    if (!lowest(i) || x - half < label_end || outside) continue;
    picture_.add(Text{.x = x, .y = box.bottom + 10, .text = tick.text, .anchor = Anchor::kMiddle, .size = kSmallText});
    label_end = x + half + 6;
  }
}

void Frame::draw_y_axis(std::size_t i, const PlotAxis& axis, const std::vector<Tick>& ticks, GridLines lines) {
  const Box box = panel(i);
  for (const Tick& tick : ticks) {
    const double y = axis.at(tick.value);
    if (lines == GridLines::kYes) picture_.line(box.left, y, box.right, y, kGridStroke);
    if (!first_in_row(i)) continue;
    picture_.add(Text{.x = box.left - 6, .y = y, .text = tick.text, .anchor = Anchor::kEnd, .size = kSmallText});
  }
}

void Frame::draw_border(std::size_t i) {
  const Box box = panel(i);
  picture_.line(box.left, box.bottom, box.right, box.bottom, kBorder);
  picture_.line(box.left, box.top, box.left, box.bottom, kBorder);
}

void draw_legend(Picture& picture, const std::vector<LegendEntry>& legend, LegendMark mark) {
  if (legend.empty()) return;
  double widest = 0;
  for (const LegendEntry& entry : legend) widest = std::max(widest, text_width(entry.label, kTextSize));
  const double pitch = kLegendMark + widest + 14;
  picture.width = std::max(picture.width, pitch + 2 * kEdge);
  const int columns =
      std::clamp(static_cast<int>((picture.width - 2 * kEdge) / pitch), 1, static_cast<int>(legend.size()));
  const double left = (picture.width - columns * pitch) / 2 + 6;
  const int rows = (static_cast<int>(legend.size()) + columns - 1) / columns;
  for (std::size_t i = 0; i < legend.size(); ++i) {
    const double x = left + static_cast<int>(i) % columns * pitch;
    const int line = static_cast<int>(i) / columns;
    const double y = picture.height + kLegendLine * (line + 0.5);
    if (mark == LegendMark::kLine) picture.line(x, y, x + kLegendMark - 8, y, line_stroke(legend[i].style));
    draw_mark(picture, x + (kLegendMark - 8) / 2, y, legend[i].style);
    picture.add(Text{.x = x + kLegendMark, .y = y, .text = legend[i].label});
  }
  picture.height += rows * kLegendLine + kEdge;
}

std::vector<Tick> category_ticks(const std::vector<std::string>& labels, int limit) {
  const std::size_t step =
      std::max<std::size_t>(1, (labels.size() + static_cast<std::size_t>(limit) - 1) / static_cast<std::size_t>(limit));
  std::vector<Tick> ticks;
  for (std::size_t i = 0; i < labels.size(); i += step) ticks.push_back({static_cast<double>(i), labels[i]});
  return ticks;
}

double widest_tick(const std::vector<Tick>& ticks) {
  double widest = 0;
  for (const Tick& tick : ticks) widest = std::max(widest, text_width(tick.text, kSmallText));
  return widest;
}

}  // namespace kv
