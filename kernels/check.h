#pragma once

// A programmer's mistake: checked in release builds too, because a wrong number is worse than an abort.
// A user's mistake is never checked with this: it throws kv::UserError (kernels/error.h).

namespace kv {

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace kv

#define KV_CHECK(condition) ((condition) ? void(0) : ::kv::check_failed(__FILE__, __LINE__, #condition))
