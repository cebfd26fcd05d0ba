#pragma once

#include <cstddef>

namespace kv::cuda {

// Copies between the host's memory and the device's, on the stream, by way of pinned memory. From memory that is not
// pinned the driver copies only when the stream has come that far, and the host waits; staged, an upload is read at
// once and, up to some 16 MB, waits for nothing, so that the host goes on while the device is still at what was
// launched before. Large pieces are copied on the host by all threads.
void upload(void* to, const void* host, size_t bytes);
// Waits for what the stream is at.
void download(void* host, const void* from, size_t bytes);

}  // namespace kv::cuda
