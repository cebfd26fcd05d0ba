#pragma once

namespace kv::ref {

// Whether the tool that these tests are linked to is a debug build, where every op looks at its page tables first.
// Suites cannot know it by themselves: the sanitizers' build takes them from another.
bool is_debug_build();
// Whether that tool is checked by AddressSanitizer.
bool is_sanitized();

}  // namespace kv::ref
