#pragma once

namespace kv {

// Entries that an event never takes: positions [0, sinks) and the newest `recent` slots.
struct Protection {
  int sinks = 0;
  int recent = 0;
};

}  // namespace kv
