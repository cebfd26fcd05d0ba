#pragma once

#include "sim/model/model_identity.h"
#include "sim/model/source_info.h"

namespace kv::ref {

// Of a source that needs no files, before it is opened.
inline ModelIdentity identity_of(const SourceInfo& info) {
  return {info.folder, [info] {
            return ModelIdentity::Shape{.layers = info.layers,
                                        .kv_heads = info.kv_heads,
                                        .q_heads = info.q_heads,
                                        .head_dim = info.head_dim,
                                        .width = info.width};
          }};
}

}  // namespace kv::ref
