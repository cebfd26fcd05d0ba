#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "sim/learned/learned_part.h"
#include "sim/learned/step_part.h"
#include "sim/learned/training_options.h"
#include "sim/model/model_identity.h"
#include "sim/model/source_info.h"
#include "sim/policy/params.h"
#include "sim/policy/slot.h"

namespace kv {

class Source;

// What the steps of a training measure, for whoever draws its curve.
struct LearnedMeasure {
  std::string name;      // Measured::metric
  std::string title;     // one line
  std::string better{};  // "lower" or "higher"; empty where neither is
};

// A mean over what one part of a step's texts showed. The step's is the mean of its parts' by their weights.
struct LearnedMean {
  std::string metric;  // Measured::metric
  double value = 0;
  double weight = 1;  // of how much it is the mean: texts, tokens or whatever the metric counts
  std::string unit;   // Measured::unit
};

// The texts of one step, or of the part of it that is learned from here.
struct LearnBatch {
  Backend& backend;
  Source& source;
  std::span<const std::span<const int32_t>> sequences;  // token ids
  std::span<const int32_t> sample_numbers;              // [sequences]
  int prefill_chunk = 1024;
  uint64_t seed = 0;
  int64_t step = 0;
  Tensor* memory = nullptr;  // lent: what is large may lie there, from one step to the next (sim/learned/student.h)
  const StepPart* part = nullptr;  // null: these are all texts of the step
  // Called, once, by a learner that has a begin_next(): when it has asked the device for all of its work on these
  // texts, before it waits for what comes of it. So the device goes on with the next ones meanwhile.
  std::function<void()> when_asked = [] {};

  int64_t first_text() const { return part ? part->first_text : 0; }
  int64_t step_texts() const { return part ? part->step_texts : std::ssize(sequences); }
};

// Trains the parameters of a policy's slot, which hands it out (Slot::learner). The model stays as it is. Parameters
// are f32, as LearnedLayout has those of parts(); who trains them (sim/learned/training.h) knows no more of them, and a
// step is a pure function of parameters, texts, seed and step, so that a training goes on from these alone. How a
// step's texts are divided into parts changes sums by no more than rounding.
class Learner {
 public:
  virtual ~Learner() = default;
  // Its own options of the key `learn`, beside those of every training.
  virtual void read(Params& params) = 0;
  // What a training is where the key says nothing, after read().
  virtual TrainingOptions defaults() const { return {}; }
  // All that learn() measures, after read().
  virtual std::vector<LearnedMeasure> measures() const = 0;
  // Of a model of that shape.
  virtual std::vector<LearnedPart> parts(const SourceInfo& info) const = 0;
  // Of the file that holds them: learned/<that>.safetensors in the model's folder (sim/learned/learned_file.h).
  virtual std::string file_name() const = 0;
  // What else tells its parameters from others, by name: a slot refuses a file that says another thing.
  virtual std::map<std::string, std::string> settings() const = 0;
  // Options of its slot that what it learns does not depend on: in a training they are refused, not passed over.
  virtual std::vector<std::string> idle_options() const { return {}; }
  // Tokens that a text must have for anything to be learned from it.
  virtual int64_t least_tokens() const = 0;
  // Files that it begins from, after read(): as Slot::check and Slot::load, before initial().
  virtual std::vector<InputFile> check(const ModelIdentity&) const { return {}; }
  virtual void load(std::span<const InputFile>) {}
  // Parameters at step 0.
  virtual std::vector<float> initial(const SourceInfo& info, uint64_t seed) const = 0;
  // The slot decides by them from its next begin() on: weights that no file holds.
  virtual void use(const SourceInfo& info, std::span<const float> parameters) = 0;
  // Adds what these texts make of the gradient of the step's loss at these parameters to `gradient`: parts' gradients
  // add up to the step's. Returns what they showed, a mean a name, the same names in every part. UserError, naming
  // layer and head, where a loss is no finite number.
  virtual std::vector<LearnedMean> learn(const LearnBatch& batch, std::span<const float> parameters,
                                         std::span<double> gradient) = 0;
  // From within learn() of a step, LearnBatch::when_asked: begins what of the next step does not depend on parameters,
  // and on a device waits for none of it. Which part of the step the batch is is not known yet. Whatever
  // learn() gets next, begun or not, its numbers are the same.
  virtual void begin_next(const LearnBatch&) {}
};

}  // namespace kv
