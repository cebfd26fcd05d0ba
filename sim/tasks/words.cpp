#include "sim/tasks/words.h"

#include <fmt/format.h>

#include <string_view>

#include "kernels/error.h"

namespace kv {
namespace {

std::string hexadecimal(Random& random, int digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < digits; ++i) text += kDigits[random.below(kDigits.size())];
  return text;
}

}  // namespace

const std::vector<std::string>& nouns() {
  static const std::vector<std::string> kNouns = {
      "anchor",   "apple",  "arrow",   "atlas",   "badge",  "banjo",  "basin",   "beacon",   "berry",      "blade",
      "bloom",    "board",  "bottle",  "branch",  "bridge", "brick",  "brook",   "brush",    "bucket",     "button",
      "cabin",    "cable",  "camel",   "candle",  "canoe",  "canyon", "carpet",  "castle",   "cedar",      "chain",
      "chair",    "chalk",  "cherry",  "chest",   "circle", "clock",  "cloud",   "clover",   "cobra",      "comet",
      "copper",   "coral",  "cotton",  "crane",   "crater", "crown",  "crystal", "curtain",  "daisy",      "desert",
      "diamond",  "dragon", "drum",    "eagle",   "ember",  "engine", "fabric",  "falcon",   "feather",    "fence",
      "fern",     "ferry",  "fiddle",  "field",   "flame",  "flask",  "flower",  "flute",    "forest",     "fossil",
      "fountain", "fox",    "frame",   "galaxy",  "garden", "garnet", "glacier", "glove",    "goblet",     "grain",
      "granite",  "grape",  "guitar",  "hammer",  "harbor", "harp",   "hawk",    "hazel",    "helmet",     "heron",
      "hill",     "hinge",  "honey",   "horizon", "horse",  "island", "ivory",   "jacket",   "jade",       "jar",
      "jewel",    "jungle", "kettle",  "kite",    "ladder", "lake",   "lantern", "lemon",    "leopard",    "lilac",
      "linen",    "lion",   "lotus",   "lynx",    "magnet", "mango",  "maple",   "marble",   "market",     "mask",
      "meadow",   "medal",  "melon",   "mirror",  "monkey", "moon",   "mosaic",  "mountain", "needle",     "nest",
      "oak",      "ocean",  "olive",   "onion",   "opal",   "orange", "orchid",  "otter",    "oven",       "owl",
      "oyster",   "paddle", "palace",  "panda",   "panel",  "paper",  "parrot",  "path",     "peach",      "pearl",
      "pebble",   "pencil", "pepper",  "piano",   "pigeon", "pillar", "pillow",  "pine",     "pipe",       "planet",
      "plum",     "pocket", "pond",    "poppy",   "potato", "prism",  "puzzle",  "quartz",   "quilt",      "rabbit",
      "raven",    "ribbon", "ridge",   "ring",    "river",  "robin",  "rocket",  "root",     "rope",       "rose",
      "ruby",     "saddle", "sail",    "salmon",  "sand",   "satin",  "scarf",   "seal",     "shell",      "shield",
      "ship",     "shovel", "silk",    "silver",  "skull",  "sled",   "snow",    "sparrow",  "spear",      "sphere",
      "spider",   "spoon",  "spruce",  "squid",   "stable", "star",   "statue",  "steel",    "stone",      "storm",
      "straw",    "stream", "sugar",   "summit",  "sun",    "swan",   "sword",   "table",    "tambourine", "tent",
      "thistle",  "thorn",  "thunder", "tiger",   "timber", "torch",  "tower",   "trail",    "train",      "tulip",
      "tunnel",   "turtle", "valley",  "vase",    "velvet", "vessel", "village", "violet",   "violin",     "volcano",
      "wagon",    "walnut", "walrus",  "wave",    "whale",  "wheat",  "wheel",   "willow",   "window",     "wing",
      "winter",   "wolf",   "wool",    "yarn",    "zebra"};
  return kNouns;
}

const std::vector<std::string>& adjectives() {
  static const std::vector<std::string> kAdjectives = {
      "amber",  "ancient", "autumn", "bitter", "blue",   "bold",    "brave",  "bright", "broad",  "broken", "bronze",
      "calm",   "careful", "cheap",  "clean",  "clear",  "clever",  "cold",   "cool",   "crisp",  "dark",   "deep",
      "dense",  "distant", "dizzy",  "double", "dry",    "dusty",   "eager",  "early",  "empty",  "fair",   "fancy",
      "fast",   "fierce",  "final",  "firm",   "flat",   "foggy",   "fresh",  "frozen", "gentle", "giant",  "glad",
      "golden", "grand",   "gray",   "green",  "happy",  "hard",    "heavy",  "hidden", "high",   "hollow", "honest",
      "humble", "icy",     "idle",   "kind",   "large",  "late",    "lazy",   "light",  "little", "lively", "local",
      "lonely", "long",    "loud",   "lucky",  "mellow", "merry",   "mild",   "misty",  "modern", "narrow", "neat",
      "new",    "noble",   "odd",    "old",    "pale",   "plain",   "polite", "proud",  "pure",   "quick",  "quiet",
      "rapid",  "rare",    "red",    "rich",   "rough",  "round",   "royal",  "rusty",  "sharp",  "shy",    "silent",
      "silly",  "simple",  "sleepy", "slim",   "slow",   "small",   "smooth", "soft",   "solid",  "sour",   "spare",
      "square", "stale",   "steep",  "stern",  "still",  "strange", "strong", "sturdy", "sunny",  "sweet",  "swift",
      "tall",   "tame",    "tender", "thick",  "thin",   "tidy",    "tiny",   "tough",  "vast",   "warm",   "weak",
      "wet",    "white",   "whole",  "wide",   "wild",   "wise",    "young"};
  return kAdjectives;
}

std::string random_number(Random& random, int digits) {
  std::string text(1, static_cast<char>('1' + random.below(9)));
  while (static_cast<int>(text.size()) < digits) text += static_cast<char>('0' + random.below(10));
  return text;
}

std::string random_key(Random& random) {
  const std::string& adjective = random.choice(adjectives());
  return adjective + "-" + random.choice(nouns());
}

std::string random_hexadecimal_key(Random& random) { return hexadecimal(random, 8); }

std::string random_form(Form form, Random& random) {
  switch (form) {
    case Form::kWords:
      return random_key(random);
    case Form::kNumber:
      return random_number(random, 7);
    case Form::kHexadecimal:
      return random_hexadecimal_key(random);
    case Form::kHexadecimal16:
      return hexadecimal(random, 16);
    case Form::kUuid:
      break;
  }
  std::string text = hexadecimal(random, 32);
  text[12] = '4';
  text[16] = "89ab"[random.below(4)];
  for (const size_t at : {20u, 16u, 12u, 8u}) text.insert(at, "-");
  return text;
}

std::string DistinctForms::draw(Random& random) {
  if (form_ == Form::kWords && seen_.size() >= nouns().size() * adjectives().size() / 2)
    throw UserError(fmt::format("more than {} different keys are asked for", seen_.size()));
  while (true) {
    std::string form = random_form(form_, random);
    if (seen_.insert(form).second) return form;
  }
}

std::string random_value(Random& random) {
  const double kind = random.uniform();
  if (kind < 0.7) return random_number(random, random.between(4, 8));
  if (kind < 0.85) {
    const std::string& adjective = random.choice(adjectives());
    return adjective + " " + random.choice(nouns());
  }
  return hexadecimal(random, 8 + 4 * random.between(0, 3));
}

}  // namespace kv
