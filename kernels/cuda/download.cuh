#pragma once

#include <cstddef>
#include <memory>

namespace kv {
class Download;
}

namespace kv::cuda {

// Backend::begin_download(): a copy on the stream into pinned memory of its own, which a later download takes over.
std::unique_ptr<Download> begin_download(const void* from, size_t bytes);

}  // namespace kv::cuda
