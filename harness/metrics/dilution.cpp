// Attention that never reaches the useful tokens (003 Eq. 7): for a query token of a sample's link,
// useful mass = Σ A over the link's source positions that it sees, softmax over the residents that it sees; dilution δ
// = 1 − useful mass, in [0, 1]. Means over (link, query token) pairs, query heads and layers, on the policy's own cache
// and hidden states; the rows of `full` are the full-cache value. dilution_tail and useful_mass_tail count the queries
// from the first event on. detail=head adds dilution_head over all queries, head counting query heads.
//
// useful=top_k takes 003's own set instead, of Sec. 3.2: the keys to which a query head of the full cache attends most
// (TopAttended), which needs no task that knows them; both: the two beside each other. Rows: dilution_top_k,
// useful_mass_top_k (and _tail, _head). What a task's tokens cannot show, that to evict the rest concentrates attention
// (Cor. 3.2), they can: a policy that evicts few of them has less dilution than the full cache. A task's tokens are a
// handful, which heads that look elsewhere ignore; where one is evicted all of its mass is lost, so that dilution by
// them rises under most policies that evict (003-dilution: under all but golden at the largest budget).

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "harness/metrics/metric.h"
#include "harness/metrics/residents.h"
#include "harness/metrics/token_record.h"
#include "harness/metrics/top_attended.h"
#include "kernels/attention_mass.h"

namespace kv {

namespace {

constexpr int kEveryHead = -1;

// The measured queries of one block, and their sets.
struct Queries {
  std::vector<int32_t> rows;       // in the packed block
  std::vector<int32_t> sequences;  // ascending
  std::vector<int32_t> positions;
  std::vector<int> heads;  // whose set it is
  std::vector<int32_t> sets;
  std::vector<int32_t> set_begin = {0};
};

struct Mass {
  double sum = 0;
  int64_t values = 0;
};

class Dilution : public Metric {
 public:
  // Without `top` the task says what is useful.
  Dilution(bool per_head, std::optional<TopAttended> top) : per_head_(per_head), top_(std::move(top)) {}

  ObserverNeeds observer_needs() const override {
    return {.baseline = {.projections = top_.has_value()}, .takes_unseen = true};
  }

  void begin_case(const CaseView& view) override {
    view_ = view;
    if (top_) top_->begin(view);
    const SourceInfo& source = *view.batch.source;
    heads_.assign(view.samples.size() * static_cast<size_t>(source.layers * source.q_heads), {});
    tail_.assign(view.samples.size(), {});
  }

  void attended(const LayerView& view, ConstRef) override {
    if (top_) {
      collect_top(view);
    } else if (view.layer == 0) {
      collect_linked(view);
    }
    if (queries_.rows.empty()) return;
    const int64_t count = static_cast<int64_t>(queries_.rows.size());
    gather(view);
    mass_.reserve(view.backend, DType::kF32, count * view.q_heads);
    view.backend.attention_mass({.queries = std::as_const(packed_).ref(),
                                 .sequences = device_sequences_.ref().as<int32_t>(),
                                 .query_positions = device_positions_.ref().as<int32_t>(),
                                 .set_positions = device_sets_.ref().as<int32_t>(),
                                 .set_begin = device_set_begin_.ref().as<int32_t>(),
                                 .count = count,
                                 .cache = view.cache,
                                 .q_heads = view.q_heads,
                                 .scale = view.scale,
                                 .mass = mass_.ref().as<float>()});
    add(view);
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      if (!top_ && view_.samples[static_cast<size_t>(s)]->links.empty()) {
        rows.push_back(
            {.sample = s, .metric = name("dilution"), .skipped = "the task does not say which tokens are useful"});
      } else {
        report_sample(s, rows);
      }
    }
  }

  std::vector<std::string> numbers() const override {
    std::vector<std::string> names;
    for (const char* metric : {"dilution", "useful_mass"}) {
      for (const char* suffix : {"", "_tail"}) names.push_back(name(metric) + suffix);
    }
    return names;
  }

  std::vector<Headline> headlines() const override {
    return {{.name = top_ ? "dilution-top-k" : "dilution",
             .title = top_ ? "Attention that misses what the full cache attends to most"
                           : "Attention that misses the tokens known to be useful",
             .metric = name("dilution"),
             .better = "lower"}};
  }

 private:
  std::string name(const std::string& metric) const { return top_ ? metric + "_top_k" : metric; }

  void collect_linked(const LayerView& view) {
    queries_ = {};
    for (const Segment& segment : view.segments) {
      const Sample& sample = *view_.samples[static_cast<size_t>(segment.sequence)];
      const int32_t end = segment.first_position + segment.count;
      for (const Link& link : sample.links) {
        const int32_t first = std::max(link.query_begin, segment.first_position);
        for (int32_t position = first; position < std::min(link.query_end, end); ++position) {
          add_query(segment, link, position);
        }
      }
    }
    upload_queries(view);
  }

  // Each query head has a set of its own, so a query stands once for each.
  void collect_top(const LayerView& view) {
    queries_ = {};
    for (const Segment& segment : view.segments) {
      const int32_t end = segment.first_position + segment.count;
      for (int32_t position = segment.first_position; position < end; ++position) {
        if (!top_->measures(position)) continue;
        for (int head = 0; head < view.q_heads; ++head) {
          const auto useful = top_->at(view.layer, segment.sequence, head, position);
          queries_.sets.insert(queries_.sets.end(), useful.begin(), useful.end());
          end_query(segment, position, head);
        }
      }
    }
    upload_queries(view);
  }

  // Of the query whose set was added last.
  void end_query(const Segment& segment, int32_t position, int head) {
    queries_.rows.push_back(segment.first_token + position - segment.first_position);
    queries_.sequences.push_back(segment.sequence);
    queries_.positions.push_back(position);
    queries_.heads.push_back(head);
    queries_.set_begin.push_back(static_cast<int32_t>(queries_.sets.size()));
  }

  void upload_queries(const LayerView& view) {
    if (queries_.rows.empty()) return;
    upload(view.backend, device_sequences_, queries_.sequences);
    upload(view.backend, device_positions_, queries_.positions);
    upload(view.backend, device_sets_, queries_.sets);
    upload(view.backend, device_set_begin_, queries_.set_begin);
  }

  void add_query(const Segment& segment, const Link& link, int32_t position) {
    const auto begin = static_cast<int64_t>(queries_.sets.size());
    for (const auto& [from, to] : link.sources) {
      for (int32_t source = from; source < to; ++source) queries_.sets.push_back(source);
    }
    // Ranges of one link may touch or overlap; the op wants each position once.
    std::sort(queries_.sets.begin() + begin, queries_.sets.end());
    queries_.sets.erase(std::unique(queries_.sets.begin() + begin, queries_.sets.end()), queries_.sets.end());
    end_query(segment, position, kEveryHead);
  }

  static void upload(Backend& backend, Tensor& to, std::span<const int32_t> from) {
    to.reserve(backend, DType::kI32, std::max<int64_t>(1, static_cast<int64_t>(from.size())));
    to.upload(from.data(), from.size_bytes());
  }

  void gather(const LayerView& view) {
    const ConstRef from = view.projections.queries;
    const int64_t query = static_cast<int64_t>(view.q_heads) * view.head_dim;
    const size_t bytes = static_cast<size_t>(query) * bytes_of(from.dtype);
    packed_.reserve(view.backend, from.dtype, static_cast<int64_t>(queries_.rows.size()) * query);
    for (size_t n = 0; n < queries_.rows.size(); ++n) {
      view.backend.copy(packed_.at(static_cast<int64_t>(n) * query).data,
                        static_cast<const char*>(from.data) + static_cast<size_t>(queries_.rows[n]) * bytes, bytes);
    }
  }

  void add(const LayerView& view) {
    const size_t heads = static_cast<size_t>(view.q_heads);
    const auto mass =
        to_host(view.backend, mass_.ref().as<float>(), static_cast<int64_t>(queries_.rows.size() * heads));
    for (size_t i = 0; i < mass.size(); ++i) {
      const int whose = queries_.heads[i / heads];
      if (whose != kEveryHead && whose != static_cast<int>(i % heads)) continue;
      const int s = queries_.sequences[i / heads];
      const int32_t event = view_.first_event[static_cast<size_t>(s)];
      Mass& of_head = at(s, view.layer, static_cast<int>(i % heads));
      of_head.sum += mass[i];
      ++of_head.values;
      if (event < 0 || queries_.positions[i / heads] < event) continue;
      tail_[static_cast<size_t>(s)].sum += mass[i];
      ++tail_[static_cast<size_t>(s)].values;
    }
  }

  Mass& at(int s, int layer, int head) {
    const SourceInfo& source = *view_.batch.source;
    return heads_[static_cast<size_t>((s * source.layers + layer) * source.q_heads + head)];
  }

  void report_sample(int s, std::vector<Measured>& rows) {
    const SourceInfo& source = *view_.batch.source;
    Mass all;
    for (int layer = 0; layer < source.layers; ++layer) {
      for (int head = 0; head < source.q_heads; ++head) {
        const Mass& mass = at(s, layer, head);
        all.sum += mass.sum;
        all.values += mass.values;
        if (!per_head_ || mass.values == 0) continue;
        rows.push_back({.sample = s,
                        .layer = source.layer_numbers[static_cast<size_t>(layer)],
                        .head = head,
                        .metric = name("dilution") + "_head",
                        .value = 1 - mass.sum / static_cast<double>(mass.values)});
      }
    }
    add_pair(s, "", all, top_ ? "no measured query sees more than top_k keys" : "the links have no query tokens", rows);
    add_pair(s, "_tail", tail_[static_cast<size_t>(s)],
             top_ ? "no measured query follows an event" : "no linked query follows an event", rows);
  }

  void add_pair(int s, const std::string& suffix, const Mass& mass, const char* reason,
                std::vector<Measured>& rows) const {
    if (mass.values == 0) {
      rows.push_back({.sample = s, .metric = name("dilution") + suffix, .skipped = reason});
      return;
    }
    const double useful = mass.sum / static_cast<double>(mass.values);
    rows.push_back({.sample = s, .metric = name("dilution") + suffix, .value = 1 - useful});
    rows.push_back({.sample = s, .metric = name("useful_mass") + suffix, .value = useful});
  }

  bool per_head_;
  std::optional<TopAttended> top_;  // absent: the task says what is useful
  CaseView view_;
  Queries queries_;
  std::vector<Mass> heads_;  // [sequences, layers, q_heads]
  std::vector<Mass> tail_;   // [sequences]
  Tensor packed_, device_sequences_, device_positions_, device_sets_, device_set_begin_, mass_;
};

// One after the other, of one pass.
class TwoDilutions : public Metric {
 public:
  TwoDilutions(bool per_head, const TopAttended& top) : by_task_(per_head, {}), by_top_(per_head, top) {}

  ObserverNeeds observer_needs() const override { return by_top_.observer_needs(); }
  void begin_case(const CaseView& view) override {
    by_task_.begin_case(view);
    by_top_.begin_case(view);
  }
  void attended(const LayerView& view, ConstRef outputs) override {
    by_task_.attended(view, outputs);
    by_top_.attended(view, outputs);
  }
  void report(const ReplayResult& result, std::vector<Measured>& rows) override {
    by_task_.report(result, rows);
    by_top_.report(result, rows);
  }
  std::vector<std::string> numbers() const override {
    std::vector<std::string> names = by_task_.numbers();
    const std::vector<std::string> more = by_top_.numbers();
    names.insert(names.end(), more.begin(), more.end());
    return names;
  }
  std::vector<Headline> headlines() const override {
    return {by_task_.headlines().front(), by_top_.headlines().front()};
  }

 private:
  Dilution by_task_, by_top_;
};

std::unique_ptr<Metric> read_dilution(Params& params) {
  const bool per_head =
      params.get("detail", "none", {"none", "head"}, "head: one row a layer and query head too") == "head";
  const std::string useful = params.get("useful", "task", {"task", "top_k", "both"},
                                        "task: tokens that the task says are needed; top_k: the keys to which a query "
                                        "head of the full cache attends most, _top_k rows (003); both: both");
  const int top_k = params.get("top_k", 64, "with useful=top_k or both: keys that are useful to a query");
  const int stride = params.get("stride", 64, "with useful=top_k or both: every stride-th query is measured");
  if (top_k < 1) params.fail("top_k", "expected at least 1");
  if (stride < 1) params.fail("stride", "expected at least 1");
  for (const char* option : {"top_k", "stride"}) {
    if (useful == "task" && params.has(option)) params.fail(option, "expected with useful: top_k or both only");
  }
  const TopAttended top(top_k, stride);
  if (useful == "both") return std::make_unique<TwoDilutions>(per_head, top);
  return std::make_unique<Dilution>(per_head, useful == "task" ? std::nullopt : std::optional(top));
}

const RegisterMetric kDilution{
    {.name = "dilution",
     .summary = "dilution, useful_mass (and _tail): attention that misses or reaches the tokens known to be useful, in "
                "[0, 1] (003); useful=top_k: what the full cache attends to most",
     .make = read_dilution}};

}  // namespace

}  // namespace kv
