#include "harness/cli/verbs.h"

int main(int argc, char** argv) { return kv::run_program(argc, argv); }
