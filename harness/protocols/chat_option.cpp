#include "harness/protocols/chat_option.h"

namespace kv {

bool reads_chat(Params& params) {
  return params.get("template", "none", {"none", "stored"},
                    "stored: context and question stand in the model's own chat template as a user's message, and the "
                    "answer's prefix begins the model's; its tokens come on top of the data's `tokens`") == "stored";
}

bool asks_for_chat(const Spec& spec) { return spec.read_options("chat", reads_chat); }

}  // namespace kv
