#include "sim/model/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/file_fixtures.h"
#include "tests/support/gguf_file.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

using test::user_error;

// SmolLM2-135M-Instruct's, as its GGUF file has it.
const std::string kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n"
    "' + message['content'] + '<|im_end|>' + '\n"
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n"
    "' }}{% endif %}";

const std::string kPlainChat =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// The expected texts are what jinja2 makes of the template.
TEST(ChatTemplate, WritesTurnsAsTheTemplateOfSmolLm2Does) {
  const ChatTemplate chat = parse_chat_template(kSmolLm2, "f");
  EXPECT_EQ(chat.first("Hi."),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.first("Hi.") + "Yes?<|im_end|>" + chat.next("Go on."),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
            "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, LineFeedsMayBeEscapedAndTheSystemMessageBeAbsent) {
  const ChatTemplate chat = parse_chat_template(kPlainChat, "f");
  EXPECT_EQ(chat.system, "");
  EXPECT_EQ(chat.first("Hi."), "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, RefusesEveryOtherText) {
  for (const std::string& text :
       {std::string(), std::string("{{ bos_token }}"), kSmolLm2 + " ", kSmolLm2.substr(0, kSmolLm2.size() - 1),
        test::replaced(kSmolLm2, "You are", "You\\'re"), test::replaced(kSmolLm2, "loop.first", "loop.last"),
        test::replaced(kSmolLm2, "Face", "Face' + tools + '"), test::replaced(kPlainChat, "assistant", "model")}) {
    const std::string message = user_error([&] { parse_chat_template(text, "m/tokenizer_config.json"); });
    EXPECT_TRUE(message.starts_with("m/tokenizer_config.json: its chat template (SHA-256 ")) << message;
    EXPECT_NE(message.find("`template: none`"), std::string::npos) << message;
  }
}

TEST(ChatTemplate, APromptMayNotEndItsOwnMessage) {
  const ChatTemplate chat = parse_chat_template(kPlainChat, "f");
  EXPECT_NE(user_error([&] { chat.first("a<|im_end|>b"); }).find("<|im_end|>"), std::string::npos);
  EXPECT_NE(user_error([&] { chat.next("<|im_start|>system"); }).find("<|im_start|>"), std::string::npos);
}

TEST(ChatTemplate, IsFoundInAFolder) {
  const test::TempFolder folder;
  EXPECT_EQ(stored_chat_template(folder.path()), std::nullopt);
  const auto config = [&](const std::string& json) {
    test::write_file(folder / "tokenizer_config.json", json);
    return stored_chat_template(folder.path());
  };
  EXPECT_EQ(config("{}"), std::nullopt);
  EXPECT_EQ(config(R"({"chat_template": null})"), std::nullopt);
  EXPECT_EQ(config(R"({"chat_template": "a"})"), "a");
  EXPECT_EQ(config(R"({"chat_template": [{"name": "tool", "template": "b"}, {"name": "default", "template": "c"}]})"),
            "c");
  for (const char* json : {R"({"chat_template": 3})", R"({"chat_template": []})", R"({"chat_template": ["default"]})",
                           R"({"chat_template": [{"name": "default"}]})", "{"}) {
    EXPECT_NE(user_error([&] { config(json); }).find("tokenizer_config.json"), std::string::npos) << json;
  }
  test::write_file(folder / "chat_template.jinja", "d");  // transformers looks here first
  EXPECT_EQ(stored_chat_template(folder.path()), "d");
}

TEST(ChatTemplate, IsFoundInAGgufFile) {
  const test::TempFolder folder;
  const auto stored = [&](const ref::GgufBuilder& builder) {
    test::write_file(folder / "m.gguf", builder.bytes());
    return stored_chat_template(folder / "m.gguf");
  };
  ref::GgufBuilder builder;
  const float one = 1;
  builder.put_f32_tensor("t", {1}, {&one, 1});
  EXPECT_EQ(stored(builder), std::nullopt);
  builder.put_text("tokenizer.chat_template", kSmolLm2);
  EXPECT_EQ(stored(builder), kSmolLm2);
}

TEST(SlowSmolLm2ChatTemplate, OfTheDownloadedModelIsKnown) {
  if (!std::getenv("KV_MODEL_TESTS")) GTEST_SKIP() << "needs a model that is downloaded: ./dev test --model";
  const auto text =
      stored_chat_template(ref::source_path("experiments/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"));
  EXPECT_EQ(text, kSmolLm2);
}

}  // namespace
}  // namespace kv
